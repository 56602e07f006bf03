"""``mens migrate openai gate``: real answers of an installation against recorded ones, the written files, and the exit
codes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.services import make_services
from cli.main import app
from openai_migration.gate.answers import answers_file
from openai_migration.gate.judges import judgements_file
from openai_migration.receipts import MigrationReceipt, read_receipt, receipt_file
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing
from shared.statistics.paired import Status
from tests.support.api_installation import application_of, settings_for
from tests.support.asgi_server import serve
from tests.support.fake_openai import KEY, TUNED, FakeOpenAI, ServedOpenAI, serve_fake_openai
from tests.support.gateway import ADAPTER, register_adapters
from tests.support.http_stub import http_stub
from tests.support.recorded_archive import EXACT, completion, record_archive, right_answer, with_eval, with_rows
from tests.support.tiny_base import write_base

pytestmark = pytest.mark.network

JUDGE_ADAPTER = f"helper@{'c' * 64}"
Answering = Callable[[dict[str, Any]], dict[str, Any]]


class Successor:
    """A replica that answers as its test says; an answer that is an error has the status 400.

    Attributes:
        requests: bodies that came.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: Answering = lambda body: completion(right_answer(body))

    def respond(self, method: str, _path: str, body: bytes, _headers: object) -> tuple[int, object]:
        if method == "GET":
            return 200, {}
        self.requests.append(json.loads(body))
        answer = self.answer(self.requests[-1])
        return 400 if "error" in answer else 200, answer


@pytest.fixture
def successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[Successor]:
    """An installation whose alias ``helper`` is an adapter on this replica; commands carry its key."""
    replica = Successor()
    home = tmp_path / "home"
    home.mkdir()
    (home / "mens.db").write_bytes(sqlite_template.read_bytes())
    with http_stub(replica.respond) as replica_url:
        settings = settings_for(home, write_base(tmp_path / "base"))
        settings.serving_urls[:] = [replica_url]
        services = make_services(settings)
        application = application_of(services)
        register_adapters(application)
        _, secret = services.keys.create("alice")
        for url in serve(application, "on"):
            monkeypatch.setenv("MENS_HOME", str(home))
            monkeypatch.setenv("MENS_API_URL", url)
            monkeypatch.setenv("MENS_API_KEY", secret)
            monkeypatch.setenv("COLUMNS", "250")
            monkeypatch.setattr("shared.http_retry.time.sleep", lambda _: None)
            yield replica


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of 100 validation rows, recorded."""
    return record(tmp_path_factory.mktemp("recorded") / "a", lambda openai: with_rows(openai, 100))


@pytest.fixture
def archive(tmp_path: Path, recorded: Path, openai: ServedOpenAI) -> Path:
    """An archive of 100 recorded validation rows; OpenAI must not get further requests."""
    openai.fake.before = lambda *_: pytest.fail("OpenAI was asked")
    return shutil.copytree(recorded, tmp_path / "a")


def record(folder: Path, fill: Callable[[ServedOpenAI], None]) -> Path:
    """Record an archive of a project that is filled so."""
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url:
        openai = ServedOpenAI(fake, url)
        fill(openai)
        record_archive(openai, folder)
    return folder


def gate(archive: Path, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["migrate", "openai", "gate", str(archive), "--candidate", "helper", *options])
    assert result.exit_code == code, result.output
    return result.output


def receipt_of(archive: Path) -> MigrationReceipt:
    receipt = read_receipt(archive, TUNED)
    assert receipt
    return receipt


def test_a_successor_that_is_as_good_passes(successor: Successor, archive: Path) -> None:
    output = gate(archive)
    assert f"{TUNED} → helper: passed" in output
    assert "gate\tstatus\told\tnew" in output
    assert "proves little" not in output
    receipt = receipt_of(archive)
    assert (receipt.verdict, receipt.adapters, receipt.counts.answered) == (Status.PASSED, [ADAPTER], 100)
    gates = {each.name: each for each in receipt.gates}
    assert gates["label:exact"].passed
    assert (gates["label:exact"].old, gates["label:exact"].new, gates["label:exact"].items) == (1.0, 1.0, 100)
    assert (gates["similarity"].block, gates["similarity"].new) == (False, 1.0)
    assert gates["finished"].passed
    assert gates["writing_system"].passed
    assert (archive / receipt_file(TUNED)).stat().st_mode & 0o777 == 0o600
    assert receipt.inputs.keys() == {f"golden/OPENAI_API_KEY/{receipt_file(TUNED)[5:]}l", answers_file(TUNED)}


def test_the_prompts_are_sent_as_they_were_recorded(successor: Successor, archive: Path) -> None:
    gate(archive)
    sent = successor.requests[0]
    assert sent["model"] == ADAPTER, "an alias could move meanwhile"
    assert (sent["temperature"], sent["seed"], sent["max_completion_tokens"]) == (0, 1337, 2048)
    assert sorted(each["messages"][-1]["content"] for each in successor.requests) == sorted(
        f"Question {number}?" for number in range(100)
    )


def test_a_worse_successor_fails(successor: Successor, archive: Path) -> None:
    successor.answer = lambda body: completion("I do not know." if "3" in str(body["messages"]) else right_answer(body))
    output = gate(archive, code=1)
    assert f"{TUNED} → helper: failed (label:exact" in output
    assert "more epochs in plans/" in output
    found = next(each for each in receipt_of(archive).gates if each.name == "label:exact")
    assert found.value == pytest.approx(-0.19)
    assert found.interval
    assert found.interval[1] < -0.03


def test_few_prompts_are_missing_evidence_with_how_many_are_needed(
    successor: Successor, openai: ServedOpenAI, tmp_path: Path
) -> None:
    with_rows(openai, 20)
    record_archive(openai, tmp_path / "a")
    output = gate(tmp_path / "a", code=1)
    assert "missing_evidence (label:exact" in output
    assert "record more prompts, or allow a larger loss with --margin" in output
    found = next(each for each in receipt_of(tmp_path / "a").gates if each.name == "label:exact")
    assert found.items_needed
    assert found.items_needed > 20
    wider = gate(tmp_path / "a", "--margin", "0.3")
    assert "passed" in wider, "a larger margin is a smaller question"
    assert "a margin of 0.3 proves little" in wider


def test_what_has_an_answer_is_not_sent_again_but_to_another_adapter(successor: Successor, archive: Path) -> None:
    gate(archive)
    assert len(successor.requests) == 100
    gate(archive)
    assert len(successor.requests) == 100
    torn = archive / answers_file(TUNED)
    torn.write_bytes(torn.read_bytes()[:-30])
    gate(archive)
    assert len(successor.requests) == 101, "the answer that was being written at a kill"
    gate(archive, "--candidate", f"helper@{'c' * 64}")
    assert len(successor.requests) == 201


def test_a_refused_prompt_scores_0_and_is_counted(successor: Successor, archive: Path) -> None:
    refusal = {"error": {"message": "No.", "code": 400}}
    successor.answer = lambda body: refusal if "7" in str(body["messages"]) else completion(right_answer(body))
    output = gate(archive, code=1)
    assert "81 of 100 recorded prompts were answered" in output
    found = next(each for each in receipt_of(archive).gates if each.name == "label:exact")
    assert (found.items, found.new) == (100, 0.81)


def test_a_shorter_context_is_not_a_refusal_for_the_recordings_own_bound(successor: Successor, archive: Path) -> None:
    message = "This model's maximum context length is 256 tokens. However, you requested 2048 output tokens."
    refusal = {"error": {"message": message, "type": "BadRequestError", "code": 400}}
    successor.answer = lambda body: refusal if "max_completion_tokens" in body else completion(right_answer(body))
    gate(archive)
    assert receipt_of(archive).counts.answered == 100
    assert len(successor.requests) == 200
    successor.requests.clear()
    gate(archive)
    assert not successor.requests, "the answer is known by the recorded request"


def test_a_bound_that_is_longer_than_the_context_is_left_out_and_said(successor: Successor, archive: Path) -> None:
    message = (
        "max_completion_tokens=2048 cannot be greater than max_model_len=1024. Please request fewer output tokens."
    )
    refusal = {"error": {"message": message, "type": "BadRequestError", "param": "max_tokens", "code": 400}}
    successor.answer = lambda body: refusal if "max_completion_tokens" in body else completion(right_answer(body))
    assert "100 without the recorded token limit" in gate(archive)
    counts = receipt_of(archive).counts
    assert (counts.answered, counts.unbounded, counts.refused) == (100, 100, {})


def test_where_all_is_refused_nothing_was_measured_and_the_reason_is_said(successor: Successor, archive: Path) -> None:
    refusal = {"error": {"message": "The adapter has no chat template.", "type": "BadRequestError", "code": 400}}
    successor.answer = lambda _: refusal
    output = gate(archive, code=1)
    assert "missing_evidence (nothing was measured: the installation refused every prompt: 100 " in output
    assert "The adapter has no chat template." in output
    assert "label:exact" not in output
    assert "record more prompts" not in output
    assert receipt_of(archive).gates == []


@pytest.mark.parametrize(
    ("candidate", "key", "code"), [("helper", "mens-wrong", "KEY_INVALID"), ("nothing", None, "MODEL_NOT_FOUND")]
)
def test_faults_of_the_candidate_or_the_key_are_not_a_verdict(
    successor: Successor, archive: Path, monkeypatch: pytest.MonkeyPatch, candidate: str, key: str | None, code: str
) -> None:
    if key:
        monkeypatch.setenv("MENS_API_KEY", key)
    assert code in gate(archive, "--candidate", candidate, code=1)
    assert read_receipt(archive, TUNED) is None


def test_a_split_alias_is_not_a_candidate(successor: Successor, archive: Path) -> None:
    targets = [f"{ADAPTER}=1", f"helper@{'c' * 64}=1"]
    split = CliRunner().invoke(app, ["aliases", "split", "helper", *targets])
    assert split.exit_code == 0, split.output
    assert "is split between" in gate(archive, code=1)


def test_an_installation_that_is_down_leaves_no_receipt(
    successor: Successor, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_API_URL", "http://127.0.0.1:9")
    assert "SERVING_UNAVAILABLE" in gate(archive, code=1)
    assert read_receipt(archive, TUNED) is None


def test_the_users_own_graders_block_when_they_agree_with_openai(
    successor: Successor, openai: ServedOpenAI, tmp_path: Path
) -> None:
    with_rows(openai, 0)
    with_eval(openai, 100, EXACT)
    record_archive(openai, tmp_path / "a")
    successor.answer = lambda _: completion("Something else.")
    gate(tmp_path / "a", code=1)
    receipt = receipt_of(tmp_path / "a")
    check = receipt.graders[0]
    assert (check.name, check.compared, check.agreeing, check.may_block) == ("eval:Tone/exact", 100, 100, True)
    found = next(each for each in receipt.gates if each.name == "eval:Tone/exact")
    assert (found.status, found.block, found.old, found.new) == (Status.FAILED, True, 1.0, 0.0)


JUDGE = {
    "type": "score_model",
    "name": "judge",
    "id": "judge-1",
    "model": "gpt-4o",
    "input": [{"role": "user", "content": "Is {{ sample.output_text }} what {{ item.expected }} says?"}],
    "pass_threshold": 0.5,
}


def is_judging(body: dict[str, Any]) -> bool:
    return "response_format" in body


def judging(body: dict[str, Any]) -> dict[str, Any]:
    """The successor's answers, and a judge that finds an answer good when it is the expected one."""
    if not is_judging(body):
        return completion(right_answer(body))
    given, expected = body["messages"][-1]["content"].removeprefix("Is ").removesuffix(" says?").split(" what ")
    return completion(json.dumps({"steps": [], "result": float(given == expected)}))


@pytest.fixture(scope="module")
def recorded_with_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of 30 items of an eval that a model has judged."""

    def fill(openai: ServedOpenAI) -> None:
        with_rows(openai, 0)
        with_eval(openai, 30, JUDGE)

    return record(tmp_path_factory.mktemp("recorded-with-judge") / "a", fill)


@pytest.fixture
def judged_archive(tmp_path: Path, recorded_with_judge: Path) -> Path:
    """A copy of it for one test."""
    return shutil.copytree(recorded_with_judge, tmp_path / "a")


def test_a_grader_that_asks_a_model_asks_the_one_that_is_named(successor: Successor, judged_archive: Path) -> None:
    successor.answer = judging
    output = gate(judged_archive, "--judge", f"gpt-4o={JUDGE_ADAPTER}", "--margin", "0.2")
    assert f"judges ({JUDGE_ADAPTER}): 30 requests, about " in output, "the same answer is judged once"
    sent = [body for body in successor.requests if is_judging(body)]
    assert {body["model"] for body in sent} == {JUDGE_ADAPTER}
    assert {body["max_completion_tokens"] for body in sent} == {1024}
    receipt = receipt_of(judged_archive)
    check = receipt.graders[0]
    assert (check.name, check.compared, check.agreeing, check.may_block) == ("eval:Tone/judge", 30, 30, True)
    found = next(each for each in receipt.gates if each.name == "eval:Tone/judge")
    assert (found.status, found.old, found.new, found.unscored) == (Status.PASSED, 1.0, 1.0, 0)
    assert receipt.judges == {"gpt-4o": JUDGE_ADAPTER}
    assert judgements_file(TUNED) in receipt.inputs
    successor.requests.clear()
    gate(judged_archive, "--judge", JUDGE_ADAPTER, "--margin", "0.2")
    assert not successor.requests, "what was judged is not judged again"


def test_a_worse_answer_fails_before_the_judge(successor: Successor, judged_archive: Path) -> None:
    successor.answer = lambda body: judging(body) if is_judging(body) else completion("Something else.")
    output = gate(judged_archive, "--judge", f"gpt-4o={JUDGE_ADAPTER}", code=1)
    assert ": 60 requests" in output
    found = next(each for each in receipt_of(judged_archive).gates if each.name == "eval:Tone/judge")
    assert (found.status, found.block, found.old, found.new) == (Status.FAILED, True, 1.0, 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "The grader uses the model gpt-4o, which is not served here. Name a judge model"),
        (["--judge", "helper"], "and helper is the candidate itself"),
        (["--judge", f"gpt-4o={ADAPTER}"], f"and {ADAPTER} is the candidate itself"),
    ],
)
def test_without_another_model_no_judge_is_queried_and_the_reason_is_shown(
    successor: Successor, judged_archive: Path, options: list[str], words: str
) -> None:
    successor.answer = judging
    gate(judged_archive, *options, code=1)
    assert not any(map(is_judging, successor.requests))
    assert words in receipt_of(judged_archive).graders[0].refused


def test_unscored_answers_are_counted_and_many_of_them_pass_nothing(successor: Successor, judged_archive: Path) -> None:
    refusal = {"error": {"message": "No.", "code": 400}}

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        asked = str(body["messages"])
        if is_judging(body) and "Answer 7." in asked:
            return refusal
        return completion("no JSON") if is_judging(body) and "Answer 8." in asked else judging(body)

    successor.answer = answer
    output = gate(judged_archive, "--judge", JUDGE_ADAPTER, "--margin", "0.2", code=1)
    assert "28 of 28 of OpenAI's stored scores agree, 2 unscored: agrees" in output
    found = next(each for each in receipt_of(judged_archive).gates if each.name == "eval:Tone/judge")
    assert (found.items, found.unscored, found.status) == (28, 2, Status.MISSING_EVIDENCE)
    assert "the judge returned no score for 2 of 30" in found.reason


def test_judges_are_queried_no_more_than_the_bound_and_a_dry_run_says_how_much(
    successor: Successor, judged_archive: Path
) -> None:
    successor.answer = judging
    assert "judges (gpt-4o): 90 requests, about " in gate(judged_archive, "--dry-run")
    output = gate(judged_archive, "--judge", JUDGE_ADAPTER, "--max-judge-requests", "10", code=1)
    assert "left out and unscored: 20 judgements (--max-judge-requests)" in output
    assert sum(map(is_judging, successor.requests)) == 10


@pytest.mark.sandbox
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_the_users_own_code_runs_and_blocks_when_it_agrees_with_openai(
    successor: Successor, openai: ServedOpenAI, tmp_path: Path
) -> None:
    with_rows(openai, 0)
    source = "def grade(sample, item): return float(sample['output_text'] == item['expected'])"
    code = {"type": "python", "name": "code", "id": "code-1", "source": source, "pass_threshold": 1.0}
    with_eval(openai, 30, code)
    record_archive(openai, tmp_path / "a")
    successor.answer = lambda _: completion("Something else.")
    gate(tmp_path / "a", code=1)
    receipt = receipt_of(tmp_path / "a")
    check = receipt.graders[0]
    assert (check.name, check.compared, check.agreeing, check.may_block) == ("eval:Tone/code", 30, 30, True)
    found = next(each for each in receipt.gates if each.name == "eval:Tone/code")
    assert (found.status, found.block, found.old, found.new) == (Status.FAILED, True, 1.0, 0.0)


def test_graders_that_differ_from_openai_are_shown_and_do_not_block(
    successor: Successor, openai: ServedOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_SANDBOX", "off")
    with_rows(openai, 0)
    code = {"type": "python", "name": "code", "id": "code-1", "source": "def grade(sample, item): return 1.0"}
    with_eval(openai, 100, EXACT, code, scores=0.0)
    record_archive(openai, tmp_path / "a")
    output = gate(tmp_path / "a", code=1)
    assert "0 of 100 of OpenAI's stored scores agree: may not block" in output
    assert "outputitem_0: 0.0 at OpenAI, 1.0 here" in output
    assert "SANDBOX_UNAVAILABLE" in output
    receipt = receipt_of(tmp_path / "a")
    assert receipt.verdict is Status.MISSING_EVIDENCE
    assert "nothing shows whether answers are right" in receipt.reason


def test_a_dry_run_sends_nothing_and_says_how_much_it_would(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("MENS_API_URL", raising=False)
    assert "at most 100 of 100 recorded prompts would be sent to helper; 0 answers of earlier runs kept" in gate(
        archive, "--dry-run"
    )
    assert not (archive / "gate").exists()


def test_json_is_the_receipt(successor: Successor, archive: Path) -> None:
    result = CliRunner().invoke(app, ["migrate", "openai", "gate", str(archive), "--candidate", "helper", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [json.loads((archive / receipt_file(TUNED)).read_bytes())]


def test_the_successor_is_the_one_that_was_trained(successor: Successor, archive: Path) -> None:
    trained = archive / "train" / "OPENAI_API_KEY" / receipt_file(TUNED)[5:-5]
    trained.mkdir(parents=True)
    arguments = ["migrate", "openai", "gate", str(archive), "--dry-run"]
    nothing = CliRunner().invoke(app, arguments)
    assert (nothing.exit_code, "no successor is known" in nothing.output) == (1, True)
    (trained / "small.json").write_text(json.dumps({"adapter": ADAPTER, "model": TUNED}))
    assert f"100 of 100 recorded prompts would be sent to {ADAPTER}" in CliRunner().invoke(app, arguments).output
    (trained / "large.json").write_text(json.dumps({"adapter": f"helper@{'c' * 64}"}))
    assert "several successors were trained" in CliRunner().invoke(app, arguments).output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "ft:other"], "has no recorded answers of ft:other"),
        (["--candidate", "ft:other=helper"], "names ft:other, which has no recorded answers"),
    ],
)
def test_a_name_that_is_wrong_is_said(successor: Successor, archive: Path, options: list[str], words: str) -> None:
    assert words in gate(archive, *options, code=1)


def test_the_key_is_in_no_file(successor: Successor, archive: Path) -> None:
    gate(archive)
    secrets = [os.environ["MENS_API_KEY"].encode(), KEY.encode()]
    for path in (archive / "gate").rglob("*"):
        assert not [secret for secret in secrets if path.is_file() and secret in path.read_bytes()]
