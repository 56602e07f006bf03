"""``mens files`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from cli.client.connection import call
from tests.support.builders import submission
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network


@pytest.fixture
def made(installation: CliInstallation) -> list[str]:
    """Ids of three files, the oldest first."""
    add = installation.services.files.add
    purposes = ("fine-tune", "evals", "fine-tune")
    return [
        add(f"{number}.jsonl", purpose, 1500, str(number) * 64, store=lambda: None).id
        for number, purpose in enumerate(purposes)
    ]


def test_files_are_listed_newest_first_with_their_sizes(installation: CliInstallation, made: list[str]) -> None:
    listed = installation.invoke("files", "list")
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [row[0] for row in rows] == made[::-1]
    assert rows[0][1:4] == ["2.jsonl", "fine-tune", "1.5 KB"]
    assert listed.stderr == "3 files, 4.5 KB\n"
    assert [file["id"] for file in json.loads(installation.mens("files", "list", "--purpose", "evals", "--json"))] == [
        made[1]
    ]


def test_next_page_is_named(installation: CliInstallation, made: list[str]) -> None:
    first = installation.invoke("files", "list", "--limit", "2")
    assert first.stderr == f"for older ones, repeat the command with --after file-…{made[1][-6:]}\n"
    assert installation.invoke("files", "list", "--after", made[1]).stdout.split("\t")[0] == made[0]


def test_file_is_shown(installation: CliInstallation, made: list[str]) -> None:
    lines = installation.mens("files", "show", made[0]).splitlines()
    assert lines[:3] == [f"{made[0]}  0.jsonl", "purpose  fine-tune", "size     1.5 KB"]
    assert installation.mens("files", "show", "file-0", code=1).startswith("error: ID_AMBIGUOUS")
    assert installation.mens("files", "show", "file-zz", code=1).startswith("error: FILE_NOT_FOUND")


def test_rows_are_shown_with_their_faults(installation: CliInstallation) -> None:
    lines = [{"prompt": "When?", "response": "On Monday\u202e."}, "no row", {"prompt": "Who?", "response": "Alice."}]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    files = {"file": ("rows.jsonl", content)}
    file = str(call("POST", "/v1/files", data={"purpose": "fine-tune"}, files=files)["id"])
    shown = installation.invoke("files", "rows", file, "--limit", "2")
    first, second = shown.stdout.split("line 2")
    assert first.startswith("line 1: ")
    assert "On Monday" in first
    assert "\u202e" not in first
    assert "ROW_" in second and "no row" in second
    assert shown.stderr == "for more, repeat the command with --after 2\n"
    assert installation.mens("files", "rows", file, "--only", "errors").startswith("line 2: ")
    assert [row["line"] for row in json.loads(installation.mens("files", "rows", file, "--json"))["data"]] == [1, 2, 3]
    assert "MODEL_NOT_FOUND" in installation.mens("files", "rows", file, "--model", "nobody", code=1)


def test_supervised_and_cut_text_is_marked(installation: CliInstallation, made: list[str]) -> None:
    pieces = [
        ("special", "<s>"),
        ("context", "When?\n"),
        ("supervised", "On Monday"),
        ("end", "</s>"),
        ("cut", " at 8"),
    ]
    trained = {"tokens": 9, "supervised_tokens": 3, "pieces": [{"kind": kind, "text": text} for kind, text in pieces]}
    row = {"line": 4, "bytes": 9, "error": None, "notes": [{"name": "cut", "reason": "It is too long."}]}
    page = {"data": [row | {"trained": trained, "rejected": None}], "has_more": False}
    installation.patch.setattr("cli.commands.data.files.call", lambda *_, **__: page)
    assert installation.mens("files", "rows", made[0], "--model", "tiny").splitlines() == [
        "line 4: 9 tokens, 3 supervised",
        "  cut: It is too long.",
        "  <s>When?",
        "  [[On Monday]][[</s>]]~~ at 8~~",
    ]


def test_file_is_deleted_after_a_question(installation: CliInstallation, made: list[str]) -> None:
    asked = installation.mens("files", "delete", made[0], code=1)
    assert asked.startswith(f"Delete {made[0]} (0.jsonl)? This cannot be undone")
    assert installation.mens("files", "delete", made[0], "--yes") == f"{made[0]} is deleted"
    assert "FILE_NOT_FOUND" in installation.mens("files", "delete", made[0], "--yes", code=1)
    job, _ = installation.services.jobs.submit(submission(extra={"training_file": made[2]}))
    refused = installation.mens("files", "delete", made[2], "--yes", code=1)
    assert refused.startswith("error: FILE_IN_USE") and job.id in refused
