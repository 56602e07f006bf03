"""Metadata of every table, with which migrations and tests compare a database."""

from shared.database.tables import adapters, audit, evaluation, files, gates, jobs, keys, names, webhooks
from shared.database.tables.base import Base

# Imported for their side effect: each adds its tables to the metadata.
MODULES = (adapters, audit, evaluation, files, gates, jobs, keys, names, webhooks)
METADATA = Base.metadata
