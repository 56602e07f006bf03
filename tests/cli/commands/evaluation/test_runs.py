"""``mens eval run`` and the following commands: a real API on a real socket, a real worker, and models whose answers a
test chooses.
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.evaluation import runs
from shared.artifacts.folder_storage import FolderStorage
from shared.base_models.catalog import Catalog, save_catalog
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.leases import Leases
from tests.support.builders import base_entry, new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.doubles import FakeJobQueue
from tests.support.http_stub import http_stub
from worker.jobs.runner import Worker
from worker.settings import WorkerSettings

pytestmark = pytest.mark.network


def respond(method: str, target: str, content: bytes, headers: Message) -> tuple[int, object]:
    """demo@1 knows the sums up to 29, demo@2 all; a question that is none is too long for both."""
    body = json.loads(content)
    question = body["messages"][-1]["content"]
    if not question.isdecimal():
        return 400, {"error": {"message": "Too long.", "mens": {"code": "CONTEXT_LENGTH_EXCEEDED", "remedy": ""}}}
    text = str(2 * int(question)) if body["model"].startswith("demo@2") or int(question) < 30 else "I do not know."
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage, "model": body["model"]}


@dataclass
class Evaluating:
    """An installation with a worker, and a file of sixty sums."""

    installation: CliInstallation
    worker: Worker
    file: Path

    def mens(self, *arguments: str, code: int = 0) -> str:
        return self.installation.mens("eval", *arguments, code=code)

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.installation.invoke("eval", *arguments, "--json", code=code).stdout)

    def finished(self, *arguments: str, file: Path | None = None) -> str:
        """Id of a run that the worker has carried out."""
        begun = ("run", str(file or self.file), *arguments, "--yes", "--no-watch", "--json")
        run_id = str(self.json(*begun[:-1])["id"])
        self.worker.run_job(run_id)
        return run_id


@pytest.fixture
def evaluating(installation: CliInstallation, tmp_path: Path) -> Iterator[Evaluating]:
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(new_adapter("demo@1"), new_adapter("demo@2"))
    file = tmp_path / "sums.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": str(number)}], "expected": str(2 * number), "tag": number % 2}
        for number in range(60)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with http_stub(respond) as url:
        settings = WorkerSettings(home=tmp_path, api_url=url, evaluation_concurrency=4)
        database = installation.services.database
        leases = Leases(database, settings.lease_seconds)
        storage = FolderStorage(settings.storage_dir)
        worker = Worker(settings, leases, Files(database), Uploads(database), storage, FakeJobQueue(), name="first")
        yield Evaluating(installation, worker, file)


def test_one_model_is_understood_from_its_page(evaluating: Evaluating) -> None:
    run_id = evaluating.finished("--model", "demo@1")
    page = evaluating.mens("show", run_id, "--worst", "1")
    assert "demo@1: 30 of 60 passed, 30 failed, 0 could not be judged" in page
    assert "exact\t30\t30\t0.500\t0.377 … 0.623\t0.500" in page
    assert "item 30  fail  exact 0.000\n  question  30\n  expected  60\n  answer    I do not know." in page
    assert "29 more did not pass" in page
    job = evaluating.installation.mens("jobs", "show", run_id)
    assert "progress item 60/60" in job
    listed = evaluating.mens("list").split("\t")
    assert (listed[0], listed[1], listed[2], listed[5]) == (run_id, "sums", "completed", "30 of 60")


def test_a_run_that_is_followed_without_a_terminal_has_lines_of_progress(
    evaluating: Evaluating, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = runs.poll

    def work_and_poll(run: dict[str, Any]) -> dict[str, Any]:
        evaluating.worker.run_job(run["id"])
        return poll(run)

    monkeypatch.setattr(runs, "poll", work_and_poll)
    followed = evaluating.installation.invoke("eval", "run", str(evaluating.file), "--model", "demo@2", "--yes")
    assert "completed  60 of 60 answers\n" in followed.stderr
    assert "demo@2: 60 of 60 passed" in followed.stdout


def test_two_models_are_compared_pair_by_pair(evaluating: Evaluating) -> None:
    run_id = evaluating.finished("--model", "demo@2", "--against", "demo@1", "--check", "exact", "--check", "regex=\\d")
    page = evaluating.mens("show", run_id)
    row = next(line for line in page.splitlines() if line.startswith("exact")).split("\t")
    assert row[1:5] == ["60", "0.500", "1.000", "+0.500"]
    assert row[-1] == "not worse"
    worse = evaluating.finished("--model", "demo@1", "--against", "demo@2")
    found = evaluating.json("show", worse, code=1)["comparisons"]["exact"]
    assert (found["status"], found["difference"]) == ("failed", -0.5)
    assert "old       60" in evaluating.mens("show", worse, code=1)


def test_models_may_be_named_by_the_beginning_of_their_ids(evaluating: Evaluating) -> None:
    new, old = f"demo@2{'a' * 63}", f"demo@3{'b' * 63}"
    evaluating.installation.register(new_adapter(new), new_adapter(old))
    begun = evaluating.json(
        "run", str(evaluating.file), "--model", "demo@2a…", "--against", "demo@3", "--yes", "--no-watch"
    )
    assert (begun["model"], runs.second_model(begun)) == (new, old)


def test_what_a_cancelled_run_has_shows_nothing(evaluating: Evaluating, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = evaluating.finished("--model", "demo@2", "--against", "demo@1")
    one = evaluating.finished("--model", "demo@2")
    evaluating.mens("show", run_id)
    find = runs.find_run
    monkeypatch.setattr(runs, "find_run", lambda run_id: find(run_id) | {"status": "canceled"})
    assert "is canceled" in evaluating.mens("show", run_id, code=1)
    assert "is canceled" in evaluating.mens("compare", one, one, code=1)


def test_two_runs_are_compared_afterwards(evaluating: Evaluating) -> None:
    old, new = evaluating.finished("--model", "demo@1"), evaluating.finished("--model", "demo@2")
    assert "not worse" in evaluating.mens("compare", old, new)
    back = evaluating.json("compare", new, old, code=1)
    assert back["comparisons"]["exact"]["status"] == "failed"
    small = evaluating.finished("--model", "demo@2", "--limit", "10")
    printed = evaluating.mens("compare", old, small, code=1)
    assert "too few items" in printed
    assert "items would decide" in printed
    assert "not compared: 50 items that only one model has" in printed


def test_the_same_file_is_the_same_eval(evaluating: Evaluating) -> None:
    first = evaluating.json("run", str(evaluating.file), "--model", "demo@1", "--yes", "--no-watch")
    again = evaluating.json("run", str(evaluating.file), "--model", "demo@2", "--yes", "--no-watch")
    other = evaluating.json("run", str(evaluating.file), "--model", "demo@2", "--check", "json", "--yes", "--no-watch")
    assert first["eval_id"] == again["eval_id"] != other["eval_id"]


def test_watching_waits_for_the_end(evaluating: Evaluating) -> None:
    jobs = evaluating.installation.services.jobs

    def work() -> None:
        while not (queued := [job for job in jobs.list() if job.kind == "evaluate"]):
            pass
        evaluating.worker.run_job(queued[0].id)

    thread = threading.Thread(target=work)
    thread.start()
    printed = evaluating.mens("run", str(evaluating.file), "--model", "demo@2", "--yes")
    thread.join()
    assert "60 items, 60 answers" in printed
    assert "at most 30,720 tokens of answers" in printed
    assert "demo@2: 60 of 60 passed" in printed


def test_item_that_cannot_be_answered_is_an_error_with_its_reason(evaluating: Evaluating, tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    rows = [{"messages": [{"role": "user", "content": text}], "expected": "2"} for text in ("1", "much too long")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = evaluating.mens("show", evaluating.finished("--model", "demo@1", file=file))
    assert "1 of 2 passed, 0 failed, 1 could not be judged" in page
    assert "1 could not be judged: CONTEXT_LENGTH_EXCEEDED: Too long." in page


def test_items_are_exported(evaluating: Evaluating, tmp_path: Path) -> None:
    run_id = evaluating.finished("--model", "demo@1", "--against", "demo@2", "--limit", "31")
    lines = [json.loads(line) for line in evaluating.mens("export", run_id).splitlines()]
    assert [line["item_index"] for line in lines] == list(range(31))
    assert lines[30]["answer"] == "I do not know."
    assert lines[30]["scores"] == {"exact": 0.0}
    assert lines[30]["incumbent"] == {"answer": "60", "scores": {"exact": 1.0}}
    table = tmp_path / "items.csv"
    evaluating.mens("export", run_id, "--csv", "--output", str(table))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert (rows[30]["status"], rows[30]["exact"]) == ("fail", "0.0")
    assert json.loads(rows[30]["item"])["expected"] == "60"


def test_eval_file_has_all_that_a_run_needs(evaluating: Evaluating, tmp_path: Path) -> None:
    file = tmp_path / "sums.yaml"
    grader = {"type": "string_check", "name": "right", "input": "{{ sample.output_text }}", "operation": "eq"}
    document = {
        "testing_criteria": [grader | {"reference": "{{ item.answer }}"}],
        "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{ item.n }}"}]},
        "sampling_params": {"max_completion_tokens": 7},
        "items": [{"n": 4, "answer": "8"}, {"n": 5, "answer": "11"}],
    }
    file.write_text(yaml.safe_dump(document))
    run = evaluating.json("show", evaluating.finished("--model", "demo@2", file=file))
    assert run["result_counts"] == {"total": 2, "passed": 1, "failed": 1, "errored": 0}
    assert run["data_source"]["sampling_params"]["max_completion_tokens"] == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nobody"), "MODEL_NOT_FOUND"),
        (("--model", "demo@1", "--against", "nobody"), "MODEL_NOT_FOUND"),
        (("--model", "demo@1", "--check", "exakt"), "exact, contains"),
        (("--model", "demo@1", "--samples", "2"), "--temperature"),
        (("--model", "demo@1"), "--yes"),
    ],
)
def test_what_cannot_begin_says_why(evaluating: Evaluating, arguments: tuple[str, ...], said: str) -> None:
    assert said in evaluating.mens("run", str(evaluating.file), *arguments, code=1)


def test_rows_without_an_expected_answer_need_a_check(evaluating: Evaluating, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "1"}]}\n')
    assert "row 1 has no `expected`" in evaluating.mens("run", str(file), "--model", "demo@1", "--yes", code=1)


def test_run_is_cancelled(evaluating: Evaluating) -> None:
    run_id = evaluating.json("run", str(evaluating.file), "--model", "demo@1", "--yes", "--no-watch")["id"]
    assert "canceled" in evaluating.mens("cancel", run_id)
    assert "does not exist" in evaluating.mens("show", "evalrun-none", code=1)
