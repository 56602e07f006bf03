"""A merged model is a base on every machine: each fetches it from the storage by the digest in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.artifacts.base_folders import fetched_folder, locate_base, locate_fetched_base
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.merge_fidelity import PROBES_NAME
from shared.artifacts.merged_models import read_model_manifest
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    MergedFrom,
    digest_model_folder,
    save_catalog,
    verify_model_folder,
)
from shared.errors import ArtifactInvalid, Code, MensError, NotFound
from shared.hashing import digest_file
from shared.retention.inventory import models_that_are_bases
from shared.settings import Settings
from tests.support.builders import base_entry
from tests.support.merged_models import store_merged, write_merged


@dataclass
class Machine:
    """A machine whose catalogue names a merged model that was made a base on another one."""

    settings: Settings
    entry: BaseModelEntry
    storage: FolderStorage


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    settings = Settings(
        home=tmp_path / "home", catalog_path=tmp_path / "etc" / "catalog.json", storage_dir=tmp_path / "storage"
    )
    storage, folder = FolderStorage(settings.storage_dir), tmp_path / "run" / "model"
    digest = store_merged(storage, folder, write_merged(folder, base_entry("org/tiny")))
    entry = BaseModelEntry(
        name="support-merged",
        source=LocalSource(path="bases/support-merged"),
        digests=digest_model_folder(folder),
        merged_from=MergedFrom(
            digest=digest,
            adapter_id="support@a",
            base_model="org/tiny",
            probes_digest=digest_file(folder / PROBES_NAME),
        ),
    )
    save_catalog(settings.catalog_path, Catalog(bases=[entry]))
    return Machine(settings, entry, storage)


def test_merged_model_is_fetched_once_and_complete(machine: Machine) -> None:
    folder = locate_base(machine.entry, machine.settings)
    assert folder.is_relative_to(machine.settings.home)
    verify_model_folder(machine.entry, folder)
    assert machine.entry.merged_from
    assert read_model_manifest(folder).digest == machine.entry.merged_from.digest
    assert digest_file(folder / PROBES_NAME) == machine.entry.merged_from.probes_digest
    machine.storage.move_to_trash("models", machine.entry.merged_from.digest)
    assert locate_base(machine.entry, machine.settings) == folder


def test_folder_of_this_machine_goes_before_the_storage(machine: Machine) -> None:
    folder = machine.settings.catalog_path.parent / "bases" / "support-merged"
    folder.mkdir(parents=True)
    assert locate_base(machine.entry, machine.settings) == folder
    assert not (machine.settings.home / "bases").exists()


def test_damaged_model_is_refused_and_leaves_nothing(machine: Machine) -> None:
    assert machine.entry.merged_from
    stored = machine.storage.root / "models" / machine.entry.merged_from.digest / "config.json"
    stored.chmod(0o644)
    stored.write_bytes(stored.read_bytes() + b" ")
    with pytest.raises(ArtifactInvalid) as caught:
        locate_base(machine.entry, machine.settings)
    assert caught.value.code == Code.BASE_DIGEST_MISMATCH
    assert not any((machine.settings.home / "bases").iterdir())


def test_model_that_is_not_stored_is_named(machine: Machine) -> None:
    assert machine.entry.merged_from
    merged = machine.entry.merged_from.model_copy(update={"digest": "0" * 64})
    with pytest.raises(NotFound):
        locate_base(machine.entry.model_copy(update={"merged_from": merged}), machine.settings)


def test_a_request_fetches_nothing(machine: Machine) -> None:
    with pytest.raises(MensError, match="has not been fetched from the storage yet") as caught:
        locate_fetched_base(machine.entry, machine.settings)
    assert caught.value.code == Code.BASE_NOT_FETCHED
    locate_base(machine.entry, machine.settings)
    assert locate_fetched_base(machine.entry, machine.settings) == fetched_folder(machine.entry, machine.settings.home)


def test_stored_model_is_kept_while_a_machine_may_have_to_fetch_it(machine: Machine) -> None:
    assert machine.entry.merged_from
    path = machine.settings.catalog_path
    assert models_that_are_bases(path, machine.storage) == {machine.entry.merged_from.digest}
    (path.parent / "bases" / "support-merged").mkdir(parents=True)
    assert models_that_are_bases(path, machine.storage) == frozenset()
