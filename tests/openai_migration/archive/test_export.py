"""An export: everything is downloaded once, whatever OpenAI's quirks, and a kill at any point changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_migration.archive.export import ProjectExport, export_project
from openai_migration.archive.folder import MANIFEST, Archive, read_entries
from openai_migration.archive.openai_client import OpenAIClient
from openai_migration.archive.sections import Section
from shared.hashing import digest_file
from tests.support.fake_openai import KEY, OTHER_KEY, TUNED, FakeOpenAI, Response, ServedOpenAI, serve_fake_openai

ITEMS = "evals/eval_0/runs/evalrun_0/output_items"


def export(openai: ServedOpenAI, folder: Path, *sections: Section, key: str = KEY) -> ProjectExport:
    with Archive(folder) as archive, openai.client(key, "P" if key == KEY else "Q") as client:
        result = export_project(client, archive, sections or tuple(Section))
        archive.finish()
    return result


def contents(folder: Path) -> dict[str, Any]:
    """The archive without its times."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files[MANIFEST] = re.sub(rb'"(fetched_at|finished_at)": "[^"]*"', b"", files[MANIFEST])
    return files


def stored(folder: Path, path: str) -> list[str]:
    """Ids on the pages of a list that the archive holds."""
    entries = [entry for entry in read_entries(folder).values() if entry.path == path and entry.file]
    return [item["id"] for entry in entries for item in json.loads((folder / entry.file).read_bytes())["data"]]


def test_everything_is_there_with_its_digest(openai: ServedOpenAI, tmp_path: Path) -> None:
    result = export(openai, tmp_path / "a")
    assert dict(result.objects) == {
        "evals": 3,
        "eval runs": 2,
        "eval output items": 7,
        "tuned models": 3,
        "jobs": 3,
        "job events": 5,
        "job checkpoints": 1,
        "files": 3,
        "files listed only (other purposes)": 1,
        "batches": 1,
        "stored chats": 3,
    }
    assert [(entry.path, entry.status) for entry in result.refused] == [("files/file-train/content", 403)]
    assert not result.failure
    kept = [entry for entry in read_entries(tmp_path / "a").values() if entry.file]
    assert all(digest_file(tmp_path / "a" / entry.file) == entry.sha256 for entry in kept)
    assert (tmp_path / "a/raw/P/files/content/file-plain").read_bytes().startswith(b"step,train_loss")


def test_evals_come_first(openai: ServedOpenAI, tmp_path: Path) -> None:
    export(openai, tmp_path / "a")
    kinds = [target.split("/")[2].partition("?")[0] for _, target in openai.fake.requests]
    assert kinds[: kinds.index("models")] == ["evals"] * kinds.count("evals")


def test_nothing_at_openai_is_changed(openai: ServedOpenAI, tmp_path: Path) -> None:
    export(openai, tmp_path / "a")
    assert {method for method, _ in openai.fake.requests} == {"GET"}


def test_a_second_export_requests_only_what_was_refused(openai: ServedOpenAI, tmp_path: Path) -> None:
    first = export(openai, tmp_path / "a")
    openai.fake.requests.clear()
    again = export(openai, tmp_path / "a")
    assert [target for _, target in openai.fake.requests] == ["/v1/files/file-train/content"]
    assert (again.objects, again.sent) == (first.objects, 1)
    openai.fake.forbidden_files.clear()
    openai.fake.projects[KEY].contents["file-train"] = b"rows"
    assert not export(openai, tmp_path / "a").refused
    assert (tmp_path / "a/raw/P/files/content/file-train").read_bytes() == b"rows"


@pytest.mark.parametrize("status", [404, 410])
def test_evals_that_are_over_end_nothing_else(openai: ServedOpenAI, tmp_path: Path, status: int) -> None:
    openai.fake.evals_end = status
    result = export(openai, tmp_path / "a")
    assert (result.refused[0].path, result.refused[0].status) == ("evals", status)
    assert result.objects["jobs"] == 3


def test_evals_that_end_later_stay_in_the_archive(openai: ServedOpenAI, tmp_path: Path) -> None:
    export(openai, tmp_path / "a", Section.EVALS)
    openai.fake.evals_end = 410
    assert export(openai, tmp_path / "a").objects["eval output items"] == 7


def test_a_page_whose_last_object_was_deleted_does_not_end_its_list(openai: ServedOpenAI, tmp_path: Path) -> None:
    openai.fake.deleted_meanwhile = {ITEMS}
    result = export(openai, tmp_path / "a", Section.EVALS)
    assert result.objects["eval output items"] == 7
    assert sorted(stored(tmp_path / "a", ITEMS)) == [f"outputitem_{number}" for number in range(5)]
    assert not result.refused


def test_a_list_that_always_has_more_ends_and_is_noted(openai: ServedOpenAI, tmp_path: Path) -> None:
    openai.fake.empty_last_page = {ITEMS}
    result = export(openai, tmp_path / "a", Section.EVALS)
    assert result.objects["eval output items"] == 7
    assert result.notes == [f"{ITEMS}: page 4 announces more entries, but has no new ones"]


def test_a_malformed_page_is_a_refusal_and_is_requested_again(openai: ServedOpenAI, tmp_path: Path) -> None:
    openai.fake.before = lambda _, path: Response(200, b"<html>Sign in</html>") if path == "evals" else None
    refused = export(openai, tmp_path / "a", Section.EVALS).refused
    assert [(entry.path, entry.code) for entry in refused] == [("evals", "not_json")]
    openai.fake.before = lambda *_: None
    assert export(openai, tmp_path / "a", Section.EVALS).objects["evals"] == 3


def test_a_cap_on_stored_chats_is_noted(openai: ServedOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_migration.archive.sections.MAX_CHATS", 2)
    result = export(openai, tmp_path / "a", Section.CHATS)
    assert (result.objects["stored chats"], result.notes) == (2, ["chat/completions: only the first 2"])
    assert TUNED.replace(":", "%3A") in {path.name for path in (tmp_path / "a/raw/P/chats").iterdir()}


def test_two_projects_with_one_suffix_stay_apart(openai: ServedOpenAI, tmp_path: Path) -> None:
    export(openai, tmp_path / "a", Section.JOBS)
    export(openai, tmp_path / "a", Section.JOBS, key=OTHER_KEY)
    jobs = {name: (tmp_path / "a/raw" / name / "jobs/page-0001.json").read_bytes() for name in "PQ"}
    assert b"ftjob-second" in jobs["Q"]
    assert b"ftjob-second" not in jobs["P"]


def test_a_refused_key_ends_its_project(openai: ServedOpenAI, tmp_path: Path) -> None:
    result = export(openai, tmp_path / "a", key="sk-proj-unknown")
    assert result.failure.startswith("OPENAI_KEY_INVALID: OpenAI refused the key in Q")


# --- being killed


class Killed(BaseException):
    """The end of a process, wherever it is."""


def interrupted(patch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """Kill at one of the points before and after each request and each move of a file; returns how many were passed."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == at:
            raise Killed

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            point()
            result = function(*arguments, **options)
            point()
            return result

        return call

    patch.setattr(OpenAIClient, "send", around(OpenAIClient.send))
    patch.setattr(Path, "replace", around(Path.replace))
    return lambda: passed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    """Files of an export that ran without interruption, and the number of points that it passed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "a"
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url, pytest.MonkeyPatch.context() as patch:
        passed = interrupted(patch, 0)
        export(ServedOpenAI(fake, url), folder)
        return contents(folder), passed()


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(kills=st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_an_export_that_is_killed_anywhere_and_run_again_leaves_the_same_archive(
    kills: list[int], undisturbed: tuple[dict[str, Any], int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, points = undisturbed
    folder = tmp_path_factory.mktemp("killed") / "a"
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url:
        for kill in kills:
            with pytest.MonkeyPatch.context() as patch:
                interrupted(patch, 1 + kill % points)
                with suppress(Killed):
                    export(ServedOpenAI(fake, url), folder)
        export(ServedOpenAI(fake, url), folder)
    assert contents(folder) == expected


@pytest.mark.network
def test_a_real_process_is_killed_and_its_successor_continues(
    openai: ServedOpenAI, tmp_path: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stop_at_20(number: int, _: str) -> None:
        if number == 20:
            reached.set()
            go_on.wait(120)

    openai.fake.before = stop_at_20
    command = [sys.executable, "-m", "cli.main", "migrate", "openai", "export", str(tmp_path / "a"), "--key-env", "P"]
    environment = {**os.environ, "P": KEY}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    assert reached.wait(90)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    go_on.set()
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0
    assert contents(tmp_path / "a") == undisturbed[0]
    # Only the request whose response was lost was sent twice.
    assert len(openai.fake.requests) == len(set(openai.fake.requests)) + 1
