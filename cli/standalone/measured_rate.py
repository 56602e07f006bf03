"""The measured training rate of a base on this machine's installation, as the API uses it to plan a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.client.connection import note
from cli.standalone.home import installed_database
from shared.base_models.catalog import BaseModelEntry, load_catalog
from shared.errors import Unavailable
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.database.jobs import TrainingRate


def measured_rate(settings: Settings, base: BaseModelEntry) -> TrainingRate | None:
    """Return the rate of the last job that tuned a base; None without such a job or without an installation."""
    # By content: a folder's name is only a label, and may be that of another base.
    names = [entry.name for entry in load_catalog(settings.catalog_path).bases if entry.digest == base.digest]
    if not names or (database := installed_database(settings)) is None:
        return None
    from shared.database.jobs import Jobs  # slow to import

    try:
        rates = (Jobs(database).training_rate(name) for name in names)
        return next((rate for rate in rates if rate), None)
    except Unavailable as error:
        note(f"note: whether a job of {base.name} was measured is not known: {error.message}")
        return None
    finally:
        database.close()
