"""The catalogue file and the digests of base models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    HubSource,
    TwinOf,
    digest_model_folder,
    load_catalog,
    save_catalog,
    verify_model_folder,
)
from shared.errors import ArtifactInvalid, Code, InvalidRequest, NotFound
from shared.hashing import digest_json
from tests.support.builders import base_entry

COMMIT = "0123456789abcdef" * 2 + "01234567"
FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"weights"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_absent_file_is_an_empty_catalogue(tmp_path: Path) -> None:
    assert load_catalog(tmp_path / "none.json") == Catalog(bases=[])


def test_saved_catalogue_is_loaded_and_nothing_is_left_next_to_it(tmp_path: Path) -> None:
    hub = BaseModelEntry(name="Org/Big", source=HubSource(repo="Org/Big", revision=COMMIT), digests={"a": "1" * 64})
    catalog = Catalog().having(hub).having(base_entry())
    path = tmp_path / "deep" / "catalog.json"
    save_catalog(path, catalog)
    save_catalog(path, catalog)
    assert load_catalog(path) == catalog
    assert [file.name for file in path.parent.iterdir()] == ["catalog.json"]


def test_having_replaces_by_name_and_sorts() -> None:
    catalog = Catalog().having(base_entry("b")).having(base_entry("a")).having(base_entry("b", config="e" * 64))
    assert [base.name for base in catalog.bases] == ["a", "b"]
    assert catalog.get("b").digests == {"config": "e" * 64}


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    catalog = Catalog().having(base_entry("one")).having(base_entry("two"))
    with pytest.raises(NotFound, match="one, two") as caught:
        catalog.get("three")
    assert caught.value.code is Code.MODEL_NOT_FOUND
    with pytest.raises(NotFound, match="none yet"):
        Catalog().get("three")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"version": 2}', b'{"bases": [{"name": "x"}]}'])
def test_broken_file_is_refused_by_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "catalog.json"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        load_catalog(path)
    assert caught.value.code is Code.CATALOG_INVALID
    assert caught.value.param == str(path)
    assert "broken at :" not in caught.value.message


def test_fault_in_the_file_is_located(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    entry = base_entry().model_dump() | {"digests": {"config.json": "short"}}
    path.write_text(json.dumps({"version": 1, "bases": [entry]}))
    with pytest.raises(InvalidRequest, match=r"bases\.0\.digests\.config\.json"):
        load_catalog(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../up"}, {"name": ""}, {"name": "a" * 129}, {"digests": {}}, {"digests": {"a": "A" * 64}},
        {"source": {"kind": "hub", "repo": "Org/Big", "revision": "main"}},
        {"source": {"kind": "hub", "repo": "", "revision": COMMIT}}, {"source": {"kind": "hub", "repo": "Org/Big"}},
        {"source": {"kind": "s3", "path": "x"}}, {"source": {"kind": "local"}}, {"extra": 1},
    ],
)  # fmt: skip
def test_bad_entry_is_refused(change: dict[str, Any]) -> None:
    BaseModelEntry.model_validate(base_entry().model_dump())
    with pytest.raises(ValidationError):
        BaseModelEntry.model_validate(base_entry().model_dump() | change)


def test_digest_covers_every_name_and_every_file() -> None:
    entry = base_entry()
    assert entry.digest == digest_json(entry.digests)
    assert base_entry(**{"config.json": "a" * 64}).digest != base_entry(**{"other.json": "a" * 64}).digest
    assert base_entry(**{"config.json": "a" * 64}).digest != base_entry(**{"config.json": "b" * 64}).digest


def test_twin_has_its_own_digest_and_its_original_s_adapters(tmp_path: Path) -> None:
    original = base_entry()
    twin = base_entry(**{"config.json": "a" * 64}).model_copy(
        update={"name": "twin", "twin_of": TwinOf(name=original.name, digests=original.digests, double_quant=True)}
    )
    assert twin.tuned_digest == original.digest == original.tuned_digest != twin.digest
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[original, twin]))
    assert load_catalog(tmp_path / "catalog.json").get("twin") == twin


def test_repository_is_that_of_the_same_files_only() -> None:
    source = HubSource(repo="Org/Big", revision=COMMIT)
    hub = BaseModelEntry(name="big", source=source, digests={"a": "1" * 64})
    assert hub.repository_of({"a": "1" * 64}) == source
    assert hub.repository_of({"a": "2" * 64}) is None
    assert base_entry().repository_of(base_entry().digests) is None


def test_folder_digests_cover_model_files_and_nothing_else(folder: Path) -> None:
    others = {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "README.md": b"words", "x.pt": b"pickle"}
    for name, content in (others | {"LICENSE.txt": b"words", ".gitattributes": b""}).items():
        (folder / name).write_bytes(content)
    (folder / "chat_template.jinja").write_bytes(b"template")
    (folder / ".cache").mkdir()
    expected = FILES | {"chat_template.jinja": b"template"}
    assert digest_model_folder(folder) == {name: sha256(content) for name, content in expected.items()}


@pytest.mark.parametrize("missing", list(FILES))
def test_incomplete_folder_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ArtifactInvalid, match=missing.replace("model", r"\*")) as caught:
        digest_model_folder(folder)
    assert caught.value.code is Code.CATALOG_INVALID


def test_pickle_is_not_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ArtifactInvalid):
        digest_model_folder(folder)


def test_folder_with_the_catalogued_bytes_passes(folder: Path) -> None:
    verify_model_folder(base_entry(**digest_model_folder(folder)), folder)


@pytest.mark.parametrize("name", list(FILES))
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "changed"])
def test_changed_or_missing_file_is_named(folder: Path, name: str, gone: bool) -> None:
    entry = base_entry(**digest_model_folder(folder))
    (folder / name).unlink() if gone else (folder / name).write_bytes(b"other")
    with pytest.raises(ArtifactInvalid) as caught:
        verify_model_folder(entry, folder)
    assert caught.value.code is Code.BASE_DIGEST_MISMATCH
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name",
    ["chat_template.json", "additional_chat_templates/other.jinja", "added_tokens.json", "tokenizer.model", "params.json",
     "processor_config.json", "more.safetensors/weights", "other.jinja", "license.json"],
)  # fmt: skip
def test_file_that_a_library_may_load_is_refused(folder: Path, name: str) -> None:
    entry = base_entry(**digest_model_folder(folder))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{}")
    for check in (digest_model_folder, lambda path: verify_model_folder(entry, path)):
        with pytest.raises(ArtifactInvalid) as caught:
            check(folder)
        assert caught.value.code is Code.BASE_FILE_UNKNOWN
        assert caught.value.param == name.split("/", maxsplit=1)[0]
        assert caught.value.details == {"unknown": [name.split("/", maxsplit=1)[0]]}
