"""Dates on which the retention policy deletes adapters: ``shutdown_date`` of the models that the API lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date

from sqlalchemy import select

from shared.database.connection import Database
from shared.database.tables.adapters import CheckpointPermissionRow
from shared.retention.inventory import stored_adapters, uses_of
from shared.retention.policy import Policy, adapter_ends, days
from shared.settings import AdapterRetentionSettings

ShutdownDates = Mapping[tuple[str, str], date]
"""Days (UTC) by tenant and id; an adapter without one is kept."""


def shutdown_dates(database: Database, settings: AdapterRetentionSettings, jobs: Collection[str]) -> ShutdownDates:
    """Return the day on which retention deletes each adapter that no name protects; today if the adapter is due.

    Jobs that have not finished may keep an adapter for longer.

    Args:
        jobs: the jobs whose adapters are read; the policy compares an adapter only with others of its job.
    """
    policy = Policy(
        checkpoints=settings.retain_checkpoints,
        failed_checkpoints=days(settings.retain_failed_checkpoint_days),
        unaliased=days(settings.retain_unaliased_days),
    )
    with database.read() as session:
        adapters, now = stored_adapters(session, jobs), database.now(session)
        if replace(policy, failed_checkpoints=None) == Policy() and not any(adapter.stopped_at for adapter in adapters):
            return {}
        uses = uses_of(session, [], settings.retain_alias_moves)
        # An adapter that another tenant may use is not deleted.
        lent = select(CheckpointPermissionRow.adapter_id)
        uses = replace(uses, needed={*uses.needed, *session.scalars(lent)})
    return {
        (adapter.tenant, adapter.id): moment.date() for adapter, moment in adapter_ends(adapters, uses, policy, now)
    }
