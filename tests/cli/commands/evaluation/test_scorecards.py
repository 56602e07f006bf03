"""``mens scorecard``: run, verify, decide and promote, from recorded answers and from a chat endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.evaluation.scorecard_sampling import sampler
from shared.errors import Code, Unavailable
from shared.gates.cycles_file import read_cycles
from shared.scorecard.spec import ScorecardSpec
from tests.support.asgi_server import serve
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.scorecards import promotion_cycle, scorecard_condition, scorecard_spec

pytestmark = pytest.mark.network

EXAMPLE = Path(__file__).parents[4] / "examples" / "scorecard" / "python.json"
GOOD = "def f(values):\n    return [2 * value for value in values]\n"


@dataclass
class ChatEndpoint:
    """Answers chats in turn; a number is a status instead."""

    answers: list[str | int] = field(default_factory=list)
    requests: list[tuple[dict[str, Any], str | None]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        content = b""
        while True:
            message = await receive()
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        key = dict(scope["headers"]).get(b"authorization")
        self.requests.append((json.loads(content or b"{}"), key.decode() if key else None))
        answer = self.answers.pop(0) if self.answers else GOOD
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        body = {"choices": [{"message": {"role": "assistant", "content": answer}}], "usage": usage}
        status = answer if isinstance(answer, int) else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@pytest.fixture
def endpoint() -> ChatEndpoint:
    return ChatEndpoint()


@pytest.fixture
def url(endpoint: ChatEndpoint) -> Iterator[str]:
    yield from serve(endpoint)


def write_spec(folder: Path, url: str, tasks: int = 2, **fields: Any) -> Path:
    spec = scorecard_spec(tasks, conditions=[scorecard_condition("new", server_url=url, model_id="m")], **fields)
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def test_recorded_answers_are_run_verified_and_decided_by(installation: CliInstallation, tmp_path: Path) -> None:
    mens, folder = installation.mens, str(tmp_path / "out")
    output = mens("scorecard", "run", str(EXAMPLE), "--output", folder)
    assert "[2/4] first chunks: stalled, 2 attempts" in output
    assert "second\t2\t1.000\t1.000\t1.000\t1.000\t0.000\t1.000" in output
    assert mens("scorecard", "verify", folder).startswith("verified")
    assert mens("scorecard", "decide", folder).startswith("continue_qlora_first: The best condition is second")
    decision = json.loads(mens("scorecard", "decide", f"{folder}/summary.json", "--json"))
    assert decision["qlora_plateau"] is False
    again = mens("scorecard", "run", str(EXAMPLE), "--output", folder)
    assert "[" not in again.splitlines()[0], "everything is done already"


def test_a_folder_that_was_changed_is_found(installation: CliInstallation, tmp_path: Path) -> None:
    mens, folder = installation.mens, tmp_path / "out"
    mens("scorecard", "run", str(EXAMPLE), "--output", str(folder))
    (folder / "second" / "outputs" / "chunks.1.txt").write_text("def chunks(:")
    output = mens("scorecard", "verify", str(folder), code=1)
    assert "second/events.jsonl: chunks: the answers give a different" in output
    assert "1 fault" in output


def test_a_model_is_sampled_and_repaired(
    installation: CliInstallation, endpoint: ChatEndpoint, url: str, tmp_path: Path
) -> None:
    endpoint.answers = ["def f(:", GOOD, GOOD]
    output = installation.mens("scorecard", "run", str(write_spec(tmp_path, url)), "--json")
    summary = json.loads(output[output.index("{") : output.rindex("}") + 1])
    (condition,) = summary["conditions"]
    assert (summary["schema"], condition["compile_pass_at_1"], condition["compile_pass_at_n"]) == (
        "vox_mens_scorecard_summary_v1",
        0.5,
        1,
    )
    assert (condition["tokens_in_total"], condition["tokens_out_total"]) == (21, 15), "as the server counts"
    first, repair, _ = [body for body, _ in endpoint.requests]
    assert (first["model"], first["temperature"], first["seed"], first["max_completion_tokens"]) == ("m", 0, 1337, 2048)
    assert "line 1: invalid syntax" in repair["messages"][-1]["content"]
    assert {key for _, key in endpoint.requests} == {None}, "the key is its own installation's secret"


def test_the_installations_own_address_gets_the_key(endpoint: ChatEndpoint, url: str) -> None:
    from cli.client.connection import Connection

    spec = ScorecardSpec.model_validate(
        scorecard_spec(1, conditions=[scorecard_condition("new", server_url=f"{url}/v1/")])
    )
    with httpx.Client() as client:
        generate = sampler(spec, client, Connection(url, "secret"))(spec.conditions[0], spec.tasks[0])
        assert generate([], 1)
    assert [key for _, key in endpoint.requests] == ["Bearer secret"]


def test_a_busy_server_is_waited_for_and_a_refusal_is_not(
    endpoint: ChatEndpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.http_retry.JITTER", 1.0)
    spec = ScorecardSpec.model_validate(scorecard_spec(1, conditions=[scorecard_condition("new", server_url=url)]))
    waits: list[float] = []
    with httpx.Client() as client:
        generate = sampler(spec, client, None, waits.append)(spec.conditions[0], spec.tasks[0])
        endpoint.answers = [429, 503]
        assert generate([], 1)
        assert waits == [1, 2]
        endpoint.answers = [401]
        with pytest.raises(Unavailable, match="401") as refused:
            generate([], 1)
        assert refused.value.code == Code.SERVING_FAILED
        endpoint.answers = [503] * 4
        with pytest.raises(Unavailable, match="503"):
            generate([], 1)
    assert waits == [1, 2, 1, 2, 4]


def test_a_run_that_was_interrupted_continues_with_the_same_command(
    installation: CliInstallation, endpoint: ChatEndpoint, url: str, tmp_path: Path
) -> None:
    path = str(write_spec(tmp_path, url, tasks=3))
    endpoint.answers = [GOOD, 400]
    assert "run the same command again" in installation.mens("scorecard", "run", path, code=1)
    output = installation.mens("scorecard", "run", path)
    assert "task_0" not in output
    assert "[3/3] new task_2: compiles" in output


def test_promotion_is_decided_by_cycles(installation: CliInstallation, tmp_path: Path) -> None:
    def scorecard(seed: int) -> str:
        cycle, folder = promotion_cycle(seed, tasks=20), tmp_path / str(seed)
        folder.mkdir()
        (folder / "spec.json").write_text(cycle.spec.model_dump_json())
        (folder / "events.all.jsonl").write_text("".join(event.model_dump_json() + "\n" for event in cycle.events))
        return str(folder)

    names = ("--candidate", "new", "--incumbent", "old")
    first, second = scorecard(1), scorecard(2)
    output = installation.mens("scorecard", "promote", first, second, *names)
    assert output.splitlines()[0] == "cycle 1: new against old"
    assert "task_success\t0.5\t0.9\t+0.4\t" in output
    assert output.splitlines()[-1].startswith("eligible: The candidate gains in 2 distinct cycles")
    alone = installation.mens("scorecard", "promote", first, first, *names, code=1)
    assert "insufficient_evidence: Not shown: 2 distinct cycles are needed, but only 1 is distinct" in alone
    installation.register(new_adapter("demo@1", final=True), new_adapter(f"old@{2:064d}"))
    installation.mens("aliases", "set", "prod", "demo@1")
    other = installation.mens("scorecard", "promote", first, second, *names, "--alias", "prod", code=1)
    assert "no cycle's incumbent has the adapter_revision that prod points to: demo@1" in other
    installation.mens("aliases", "set", "prod", f"old@{2:064d}")
    save = tmp_path / "cycles.jsonl"
    more = ("--alias", "prod", "--save", str(save))
    assert "eligible: " in installation.mens("scorecard", "promote", first, second, *names, *more)
    assert [cycle.spec.conditions[0].training_seed for cycle in read_cycles(save)] == [1, 2]


def test_wrong_calls_say_what_is_wrong(installation: CliInstallation, tmp_path: Path) -> None:
    mens = installation.mens
    assert "SCORECARD_INVALID" in mens("scorecard", "run", str(tmp_path / "absent.json"), code=1)
    assert "SCORECARD_INVALID" in mens("scorecard", "decide", str(tmp_path), code=1)
    baseline = str(EXAMPLE.with_name("vox-baseline.json"))
    assert "CHECKER_NOT_FOUND" in mens("scorecard", "run", baseline, "--output", str(tmp_path / "v"), code=1)
    assert "choose one of spec, event, summary, decision" in mens("scorecard", "schema", "no", code=1)
    assert json.loads(mens("scorecard", "schema", "event"))["title"] == "ScorecardEvent"
