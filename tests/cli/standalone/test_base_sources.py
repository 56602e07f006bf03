"""`mens base add`: a folder, or a hub repository whose branch or tag is resolved once; names, next steps, and refusals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.standalone import base_facts
from shared.base_models.catalog import HubSource, LocalSource, load_catalog
from shared.settings import Settings
from tests.support.hub_server import TOKEN, Hub, hub_server
from tests.support.tiny_base import write_base

NEW, OLD = "a" * 40, "b" * 40


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    # What it finds is in tests/worker/test_tokenizer_check.py.
    monkeypatch.setattr(base_facts, "run_worker_program", lambda *_: None)
    return Settings()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "my model")


@pytest.fixture
def hub(settings: Settings, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with `org/tiny`: `main`, and a tag `v1` at another commit."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_server() as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        server.repositories["org/tiny"] = {path.name: path.read_bytes() for path in base.iterdir()}
        server.refs["org/tiny"] = {"main": NEW, "v1": OLD}
        yield server


def add(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["base", "add", *arguments])
    assert result.exit_code == code, result.output
    return result


def sources(settings: Settings) -> dict[str, LocalSource | HubSource]:
    return {entry.name: entry.source for entry in load_catalog(settings.catalog_path).bases}


@pytest.mark.network
@pytest.mark.parametrize(
    ("arguments", "name", "commit"),
    [
        (["org/tiny"], "org/tiny", NEW),
        (["mine", "org/tiny"], "mine", NEW),
        (["mine", "--hub", "org/tiny", "--revision", "v1"], "mine", OLD),
        (["mine", "org/tiny", "--revision", OLD], "mine", OLD),
    ],
)
def test_branch_or_tag_is_pinned_to_its_commit(
    hub: Hub, settings: Settings, arguments: list[str], name: str, commit: str
) -> None:
    said = add(*arguments)
    assert sources(settings) == {name: HubSource(repo="org/tiny", revision=commit)}
    assert (commit in said.stderr) == (OLD not in arguments), "what was found is printed"
    listed = json.loads(CliRunner().invoke(app, ["base", "list", "--json"]).output)
    assert listed[0]["facts"]["family"] == "qwen3"


@pytest.mark.network
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["org/none"], ["MODEL_NOT_FOUND", "org/none", "HF_TOKEN"]),
        (["org/tiny", "--revision", "v9"], ["MODEL_NOT_FOUND", "'v9'", "--revision"]),
        (["org/gated"], ["HUB_ACCESS_DENIED", "Accept its terms", "HF_TOKEN"]),
    ],
)
def test_what_the_hub_does_not_give_is_said(
    hub: Hub, settings: Settings, arguments: list[str], words: list[str]
) -> None:
    hub.repositories["org/gated"], hub.refs["org/gated"] = {}, {"main": NEW}
    hub.gated.add("org/gated")
    refused = add(*arguments, code=1)
    assert [word for word in words if word not in refused.stderr] == []
    assert sources(settings) == {}


@pytest.mark.network
def test_private_repository_without_a_token(hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "MODEL_NOT_FOUND" in add("org/tiny", code=1).stderr


def test_hub_that_does_not_respond(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    refused = add("org/tiny", code=1)
    assert "HUB_UNAVAILABLE" in refused.stderr
    assert "mens base add NAME FOLDER" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["./my model"], "my-model"), (["mine", "my model"], "mine"), (["mine", "--path", "my model"], "mine")],
)
def test_folder_is_added_and_what_comes_next_is_said(
    settings: Settings, base: Path, arguments: list[str], name: str
) -> None:
    added = add(*arguments, "--license", "MIT")
    said = added.stdout
    assert re.search(rf"hashing and checking the files of {name} \(.* [KM]B\)", added.stderr)
    [source] = sources(settings).values()
    assert (list(sources(settings)), source) == ([name], LocalSource(path=str(base)))
    assert "qwen3, " in said
    assert "context 512, float32" in said
    assert "licence MIT" in said
    for command in (
        f"mens up --base {name}",
        f"mens plan my.jsonl --model {name}",
        f"mens train my.jsonl --model {name}",
    ):
        assert command in said
    listed = CliRunner().invoke(app, ["base", "list"]).stdout.split("\t")
    assert listed[:5] == [name, "qwen3", listed[2], "512", "float32"]
    shutil.rmtree(base)
    assert "not on this machine" in CliRunner().invoke(app, ["base", "list"]).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine"], "a GGUF file"),
        (["mine", "/nowhere"], "/nowhere"),
        (["mine", "--path", "/nowhere"], "MODEL_NOT_FOUND"),
        (["mine", "my model", "--hub", "org/tiny"], "give the source once"),
        (["mine", "my model", "--revision", "main"], "--revision only applies to a hub repository"),
        (["no name", "my model"], "cannot be a base model"),
        (["mine", "--hub", "org/tiny", "--revision", OLD[:12]], "HUB_UNAVAILABLE"),
    ],
)
def test_source_that_cannot_be_meant(
    settings: Settings, base: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert words in add(*arguments, code=1).stderr.replace("\n", " ")
    assert sources(settings) == {}


def test_files_have_one_name(settings: Settings, base: Path, tmp_path: Path) -> None:
    add("mine", "my model")
    copy = shutil.copytree(base, tmp_path / "copy")
    refused = add("second", str(copy), code=1).stderr
    assert "error: MODEL_DUPLICATE: These files are already in the catalogue as mine. Use that name: " in refused
    assert "`mens up --base mine`" in refused and "`mens base remove mine`" in refused
    assert list(sources(settings)) == ["mine"]
    add("mine", str(copy), "--learning-rate", "1e-4")
    [entry] = load_catalog(settings.catalog_path).bases
    assert (entry.source, entry.learning_rate) == (LocalSource(path=str(copy)), 1e-4)
    CliRunner().invoke(app, ["base", "remove", "mine", "--yes"])
    add("second", str(copy))


@pytest.mark.network
def test_second_name_of_a_commit_is_refused_before_its_download(hub: Hub, settings: Settings) -> None:
    add("mine", "org/tiny")
    hub.repositories["org/tiny"] = {}
    assert "MODEL_DUPLICATE" in add("second", "org/tiny", code=1).stderr
