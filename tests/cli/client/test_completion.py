"""Completion of ids and names, against a real API on a real socket, and as a shell requests it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.client.completion import complete_alias, complete_base, complete_file, complete_job, complete_model
from cli.main import app
from shared.base_models.catalog import Catalog, save_catalog
from tests.support.builders import base_entry, new_adapter, submission
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network


@pytest.fixture
def filled(installation: CliInstallation) -> CliInstallation:
    """A base, an adapter and an alias."""
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(new_adapter("demo@1"))
    installation.mens("aliases", "set", "prod", "demo@1")
    return installation


def test_names_are_completed_with_what_they_are(filled: CliInstallation) -> None:
    assert complete_alias("p") == [("prod", "alias")]
    assert complete_base("") == [("tiny", "base")]
    assert dict(complete_model("")) == {"tiny": "base", "demo@1": "adapter", "prod": "alias"}
    assert complete_model("de") == [("demo@1", "adapter")]


def test_ids_are_completed_by_their_beginning_and_jobs_by_their_end(filled: CliInstallation) -> None:
    job, _ = filled.services.jobs.submit(submission(name="invoice"))
    assert (job.id, "queued, invoice on tiny") in complete_job("ftjob-")
    assert complete_job(job.id[-8:]) == [(job.id, "queued, invoice on tiny")]
    file = filled.services.files.add("rows.jsonl", "fine-tune", 1, "a" * 64, store=lambda: None)
    assert complete_file("file-0") == [(file.id, "rows.jsonl")]


def test_nothing_is_completed_or_said_without_an_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    for url in ("", "http://127.0.0.1:9"):
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", "key")
        assert complete_model("") == complete_job("") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("mens chat pr", "prod"),
        ("mens models show pr", "prod"),
        ("mens models delete de", "demo@1"),
        ("mens jobs list --alias pr", "prod"),
        ("mens jobs list --base ti", "tiny"),
        ("mens train rows.jsonl --model ti", "tiny"),
        ("mens aliases history pr", "prod"),
        ("mens jobs merge de", "demo@1"),
        ("mens merge de", "demo@1"),
    ],
)
def test_shell_requests_a_completion(filled: CliInstallation, words: str, completed: str) -> None:
    asked = {"_MENS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    said = CliRunner().invoke(app, [], prog_name="mens", env=asked)
    assert said.stdout.split() == [completed]
