"""``mens base``: the families of a tiny base, names that a base cannot have, and the removal of a base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.commands.bases import tiny
from cli.commands.bases.tiny import TinyFamily, build
from cli.main import app
from cli.standalone import base_facts
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    TwinOf,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.base_models.families import TINY_FAMILIES
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.routing import Routing
from shared.settings import Settings
from tests.support.builders import claimed, new_adapter
from tests.support.tiny_base import write_base


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with a base that Mens made, `tiny`, and no database yet."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(base_facts, "run_worker_program", lambda *_: None)
    folder = write_base(tmp_path / "home" / "bases" / "tiny")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path="bases/tiny"), digests=digest_model_folder(folder))
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry]))
    return Settings()


@pytest.fixture
def with_alias(settings: Settings, sqlite_template: Path) -> Settings:
    """The same, with a database in which acme's alias `helper` points to an adapter of `tiny`."""
    (settings.home / "mens.db").write_bytes(sqlite_template.read_bytes())
    database = Database(settings.database_url)
    leases = Leases(database, 60)
    leases.finish(claimed(Jobs(database), leases), {}, adapters=[new_adapter()])
    Aliases(database, "acme").set("helper", Routing.to("demo@1"), Actor(id="key-1", name="alice"))
    return settings


def mens(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["base", *arguments], input=answer)


def name_another_eos(folder: Path) -> None:
    """Make the tokenizer's config name a token as EOS with which the template begins a turn."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    (folder / "generation_config.json").unlink(missing_ok=True)


def test_base_whose_config_names_another_end_than_its_template(settings: Settings, tmp_path: Path) -> None:
    folder = write_base(tmp_path / "other")
    assert "note:" not in mens("add", "right", "--path", str(folder)).output
    name_another_eos(folder)
    added = mens("add", "other", "--path", str(folder))
    assert added.exit_code == 0, added.output
    assert "note: The base's chat template ends turns with <|im_end|>" in added.output
    assert "other" in names(settings)


def names(settings: Settings) -> list[str]:
    return [base.name for base in load_catalog(settings.catalog_path).bases]


def test_every_family_with_a_tiny_base_can_be_built() -> None:
    assert [family.in_config for family in TinyFamily] == list(TINY_FAMILIES)


def test_only_qwen3_5_is_built_with_a_vision_part(settings: Settings) -> None:
    refused = mens("build", "bad", "--family", "llama", "--composite")
    assert (refused.exit_code, names(settings)) == (1, ["tiny"])
    assert "a llama model has no vision part" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [["build", "helper"], ["build", "helper", "--replace"], ["add", "helper", "--path", "bases/tiny"]]
)
def test_alias_keeps_its_name_from_a_new_base(with_alias: Settings, arguments: list[str]) -> None:
    kept = with_alias.home / "bases" / "helper"
    if "--replace" in arguments:
        kept.mkdir()
    refused = mens(*arguments)
    assert (refused.exit_code, names(with_alias)) == (1, ["tiny"])
    assert refused.stderr.startswith("error: NAME_INVALID: 'helper' is an alias of the tenant 'acme'")
    assert "mens aliases delete helper" in refused.stderr
    assert kept.exists() == ("--replace" in arguments), "refused before anything is deleted"


@pytest.mark.parametrize("steps", ["-5", "0"])
def test_base_is_not_built_in_no_steps(settings: Settings, steps: str) -> None:
    refused = mens("build", "bad", "--steps", steps)
    assert (refused.exit_code, "--steps" in refused.stderr, names(settings)) == (2, True, ["tiny"])


def test_built_files_have_one_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "run_worker_program", lambda _program, folder, *_options, **_: write_base(Path(folder)))
    refused = mens("build", "second")
    assert (refused.exit_code, names(settings)) == (1, ["tiny"])
    assert "MODEL_DUPLICATE: These files are already in the catalogue as tiny." in refused.stderr
    assert not (settings.home / "bases" / "second").exists()
    assert mens("build", "tiny", "--replace").exit_code == 0
    build(settings, "second", allow_copy=True)
    assert names(settings) == ["second", "tiny"]


def test_base_is_added_where_no_database_responds(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (write_base(tmp_path / str(length), max_position_embeddings=length) for length in (128, 256))
    added = mens("add", "helper", "--path", str(one))
    assert (added.exit_code, "note: " in added.stderr) == (0, False)
    monkeypatch.setenv("MENS_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:9/none")
    added = mens("add", "other", "--path", str(two))
    assert (added.exit_code, names(settings)) == (0, ["helper", "other", "tiny"])
    assert "could not check whether an alias is called 'other'" in added.stderr


def test_removed_base_takes_its_own_files_with_it(settings: Settings) -> None:
    folder = settings.home / "bases" / "tiny"
    assert mens("remove", "tiny", answer="n\n").exit_code == 1
    assert (names(settings), folder.is_dir()) == (["tiny"], True)
    removed = mens("remove", "tiny", "--yes")
    assert (removed.exit_code, names(settings), folder.exists()) == (0, [], False)
    assert str(folder) in removed.stdout
    assert "MODEL_NOT_FOUND" in mens("remove", "tiny", "--yes").stderr


def test_files_of_others_stay(settings: Settings, tmp_path: Path) -> None:
    own = write_base(tmp_path / "own", max_position_embeddings=128)
    assert mens("add", "mine", "--path", str(own)).exit_code == 0
    removed = mens("remove", "mine", "--yes")
    assert (removed.exit_code, own.is_dir(), "stay where they are" in removed.stdout) == (0, True, True)
    [tiny] = load_catalog(settings.catalog_path).bases
    save_catalog(settings.catalog_path, Catalog(bases=[tiny, tiny.model_copy(update={"name": "same"})]))
    assert mens("remove", "tiny", "--yes").exit_code == 0
    assert (settings.home / "bases" / "tiny").is_dir(), "another base has them"


def test_base_that_is_needed_is_not_removed(with_alias: Settings) -> None:
    refused = mens("remove", "tiny", "--yes")
    assert (refused.exit_code, names(with_alias)) == (1, ["tiny"])
    assert refused.stderr.startswith("error: MODEL_IN_USE: The base tiny is needed by the adapter demo@1.")


def test_base_with_a_twin_is_not_removed(settings: Settings) -> None:
    tiny = load_catalog(settings.catalog_path).get("tiny")
    twin = tiny.model_copy(
        update={"name": "twin", "twin_of": TwinOf(name="tiny", digests=tiny.digests, double_quant=True)}
    )
    save_catalog(settings.catalog_path, Catalog(bases=[tiny, twin]))
    refused = mens("remove", "tiny", "--yes")
    assert (refused.exit_code, "`mens base remove twin`" in refused.stderr) == (1, True)


def test_base_that_took_over_an_alias_is_removed(with_alias: Settings) -> None:
    catalog = json.loads(with_alias.catalog_path.read_text())
    catalog["bases"].append({**catalog["bases"][0], "name": "helper"})
    with_alias.catalog_path.write_text(json.dumps(catalog))
    assert mens("remove", "helper", "--yes").exit_code == 0
    assert names(with_alias) == ["tiny"]
