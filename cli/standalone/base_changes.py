"""Checks before a base is added to this machine's catalogue, or removed from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.client.connection import note
from cli.standalone.home import installed_database
from shared.base_models.catalog import BaseModelEntry, LocalSource, load_catalog
from shared.errors import Code, Conflict, Unavailable
from shared.settings import Settings


def check_name(settings: Settings, name: str) -> None:
    """Refuse an alias's name for a new base, as far as this machine can read the database."""
    # An existing base keeps its name; the installation may be on another machine, or be started later.
    if any(base.name == name for base in load_catalog(settings.catalog_path).bases):
        return
    database = installed_database(settings)
    if database is None:
        return
    from shared.database.overview.base_users import refuse_taken_name  # slow to import

    try:
        refuse_taken_name(database, name)
    except Unavailable as error:
        note(f"note: could not check whether an alias is called {name!r}: {error.message}")


def refuse_copy(settings: Settings, name: str, is_same: Callable[[BaseModelEntry], bool]) -> None:
    """Refuse a second name for files that the catalogue has, since only one of the names would work everywhere.

    A replica serves adapters by its base's digest, so adapters would train and answer under either name; but it answers
    for the base itself under the name that it was started with, so a chat with the other name would be refused. The
    same name again is not a copy: the entry is replaced, e.g. to change its learning rate.

    Args:
        is_same: whether an entry has the files that are to be added.

    Raises:
        Conflict: ``MODEL_DUPLICATE``.
    """
    bases = load_catalog(settings.catalog_path).bases
    same = next((base.name for base in bases if base.name != name and is_same(base)), None)
    if same and not any(base.name == name for base in bases):
        raise Conflict(
            Code.MODEL_DUPLICATE,
            f"These files are already in the catalogue as {same}.",
            remedy=f"Use that name: `mens up --base {same}`. For another one, remove it first: `mens base remove {same}`.",
            param="name",
            details={"name": same},
        )


def refuse_needed(settings: Settings, entry: BaseModelEntry) -> None:
    """Refuse to remove a base that is still needed: by its twins, or by the database of this machine, if any.

    Raises:
        Conflict: ``MODEL_IN_USE``.
    """
    twins = [
        base.name
        for base in load_catalog(settings.catalog_path).bases
        if base.twin_of and (base.twin_of.name, base.twin_of.digests) == (entry.name, entry.digests)
    ]
    if twins:
        raise Conflict(
            Code.MODEL_IN_USE,
            f"{', '.join(twins)} serves the adapters of {entry.name}.",
            remedy=f"Remove the twin first: `mens base remove {twins[0]}`.",
            param="model",
            details={"twins": twins},
        )
    if database := installed_database(settings):
        from shared.database.overview.base_users import refuse_needed_base  # slow to import

        refuse_needed_base(database, entry.name)


def own_folder(settings: Settings, entry: BaseModelEntry) -> Path | None:
    """Return the folder that Mens created for a base, ``bases/NAME`` in its home; None if it does not exist, or another
    entry uses it too.
    """
    catalog, folder = load_catalog(settings.catalog_path), settings.home / "bases" / entry.name

    def has_it(base: BaseModelEntry) -> bool:
        source = base.source
        return isinstance(source, LocalSource) and (settings.catalog_path.parent / source.path).resolve() == folder

    having = [base.name for base in catalog.bases if has_it(base)]
    return folder if having == [entry.name] and folder.is_dir() else None
