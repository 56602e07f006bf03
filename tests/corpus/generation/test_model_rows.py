"""Rows with answers of models: no request is sent twice, whatever happens; budgets hold; keys and personal data are
written to no file.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus.shards import read_index
from shared.errors import Conflict, InvalidRequest, MensError, NotFound, Unavailable
from tests.corpus.generation.model_recipes import (
    ANSWER,
    KEY,
    NUMBER,
    QUESTION,
    ROW,
    files_of,
    rows_of,
    run,
    stage,
    write,
)
from tests.support.chat_server import ChatServer, chat_server


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(lambda body: f"The answer to: {prompt_of(body)}") as one:
        yield one


def test_the_second_run_sends_nothing_and_gives_the_same_bytes(tmp_path: Path, server: ChatServer) -> None:
    recipe = write(tmp_path, rows=25)
    index, rows = run(recipe, server.url, tmp_path / "rows")
    assert (index.rows, len(server.bodies), server.repeated) == (25, 25, 0)
    assert rows[3]["prompt"] == "Question 3 about printers?"
    assert rows[3]["response"] == "The answer to: Question 3 about printers?"
    assert rows[3]["origin"] == "synthetic"
    first = files_of(tmp_path / "rows")
    run(recipe, server.url, tmp_path / "rows", concurrency=1)
    assert len(server.bodies) == 25
    assert files_of(tmp_path / "rows") == first
    body = server.bodies[0]
    assert body["model"] == "helper-large"
    assert (body["max_completion_tokens"], body["temperature"]) == (512, 0.0)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_more_rows_keep_the_earlier_ones_and_ask_only_the_new(tmp_path: Path, server: ChatServer) -> None:
    recipe = write(tmp_path)
    _, few = run(recipe, server.url, tmp_path / "rows", 10)
    _, many = run(recipe, server.url, tmp_path / "rows", 30)
    assert many[:10] == few
    assert (len(server.bodies), server.repeated) == (30, 0)


def test_equal_prompts_are_sent_once_except_at_a_temperature(tmp_path: Path, server: ChatServer) -> None:
    same = QUESTION | {"template": "What is a printer?"}
    dedup = {"exact": False}
    run(write(tmp_path, columns=[NUMBER, same, ANSWER], dedup=dedup), server.url, tmp_path / "cold")
    assert len(server.bodies) == 1
    run(
        write(tmp_path, columns=[NUMBER, same, ANSWER | {"temperature": 0.7}], dedup=dedup),
        server.url,
        tmp_path / "warm",
    )
    assert len(server.bodies) == 11


def test_provenance_names_method_model_revision_and_requests(tmp_path: Path, server: ChatServer) -> None:
    run(write(tmp_path), server.url, tmp_path / "rows")
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines()[0])
    generator = line["generator"]["a"]
    assert len(generator.pop("requests")[0]) == 64
    assert generator == {
        "method": "answer",
        "endpoint": server.url,
        "model": "helper-large-0613",
        "revision": "fp_1",
        "terms": "permits_training",
    }
    assert line["source"] == "generate:recipe"


def test_requests_are_sent_at_once_but_not_more_than_allowed(tmp_path: Path) -> None:
    def slow(body: dict[str, Any]) -> str:
        time.sleep(0.02)
        return prompt_of(body)

    with chat_server(slow) as server:
        run(write(tmp_path, rows=40), server.url, tmp_path / "rows", concurrency=4)
        assert 1 < server.most_at_once <= 4


@pytest.mark.parametrize("answered", [0, 1, 7, 19])
def test_a_kill_loses_only_what_is_in_flight(tmp_path: Path, answered: int) -> None:
    """The process is killed while the server has some requests; the next one sends those again, and no other."""
    recipe = write(tmp_path, rows=20)
    child = 0

    def deadly(body: dict[str, Any]) -> str:
        if child and len(server.bodies) > answered:
            os.kill(child, signal.SIGKILL)
            # The stored responses are those that were sent before.
            time.sleep(0.2)
        return prompt_of(body)

    with chat_server(deadly) as server:
        if not (child := os.fork()):
            try:
                time.sleep(0.1)
                run(recipe, server.url, tmp_path / "rows", concurrency=1)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        child = 0
        assert read_index(tmp_path / "rows") is None
        _, rows = run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert len(rows) == 20
        assert len(server.bodies) <= 21
        run(recipe, server.url, tmp_path / "whole", concurrency=3)
    assert files_of(tmp_path / "rows") == files_of(tmp_path / "whole")


def test_a_server_that_fails_half_way_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.generation.asking.ATTEMPTS", 1)
    is_down = True

    def failing(body: dict[str, Any]) -> str | tuple[int, dict[str, Any]]:
        if is_down and len(server.bodies) > 6:
            return 500, {"error": {"message": f"failure with {KEY}"}}
        return prompt_of(body)

    with chat_server(failing) as server:
        with pytest.raises(Unavailable, match="status 500") as caught:
            run(write(tmp_path), server.url, tmp_path / "rows", concurrency=1)
        assert caught.value.code == "CORPUS_MODEL_UNAVAILABLE"
        assert KEY not in str(caught.value.as_dict())
        assert read_index(tmp_path / "rows") is None
        is_down, sent = False, len(server.bodies)
        _, rows = run(write(tmp_path), server.url, tmp_path / "rows", concurrency=1)
        assert len(rows) == 10
        assert len(server.bodies) - sent == 4


def test_request_to_a_busy_server_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.http_retry.FIRST_WAIT_SECONDS", 0.001)

    def busy(body: dict[str, Any]) -> str | tuple[int, dict[str, Any]]:
        return (503, {}) if len(server.bodies) % 2 else prompt_of(body)

    with chat_server(busy) as server:
        _, rows = run(write(tmp_path), server.url, tmp_path / "rows", concurrency=1)
        assert (len(rows), len(server.bodies)) == (10, 20)
        # The requests that failed count too: with 20 sent, one more row is one too many.
        recipe = write(tmp_path, budget={"requests": 20})
        with pytest.raises(Conflict, match=r"budget\.requests; 20 requests"):
            run(recipe, server.url, tmp_path / "rows", 11, concurrency=1)
        assert len(server.bodies) == 20


def test_what_failed_requests_may_have_cost_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that gives up may have had its answer made; a server that is busy has made none."""
    monkeypatch.setattr("corpus.generation.asking.ATTEMPTS", 2)
    monkeypatch.setattr("shared.http_retry.FIRST_WAIT_SECONDS", 0.001)
    status, column = 504, ANSWER | {"max_tokens": 100}
    budget = {"tokens": 2_000}
    with chat_server(lambda _: (status, {})) as server:
        for sent in (2, 4, 6):
            status = {2: 504, 4: 520, 6: 524}[sent]
            recipe = write(tmp_path, rows=1, columns=[NUMBER, QUESTION, column], budget=budget)
            with pytest.raises(Unavailable):
                run(recipe, server.url, tmp_path / "rows", concurrency=1)
            assert len(server.bodies) == sent
        status, budget = 503, {"requests": 8}
        recipe = write(tmp_path, rows=1, columns=[NUMBER, QUESTION, column], budget=budget)
        with pytest.raises(Unavailable):
            run(recipe, server.url, tmp_path / "rows", concurrency=1)
        with pytest.raises(Conflict, match=r"budget\.requests; 8 requests and (\d+) tokens") as caught:
            run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert len(server.bodies) == 8
    tokens = int(str(caught.value).split(" and ")[1].split()[0].replace(",", ""))
    assert tokens % 6 == 0
    assert tokens > 600
    # With what may have been used, one more request could exceed the bound.
    recipe = write(tmp_path, rows=1, columns=[NUMBER, QUESTION, column], budget={"tokens": tokens + 99})
    with chat_server(prompt_of) as server:
        with pytest.raises(Conflict, match=r"budget\.tokens"):
            run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert not server.bodies


def test_an_answer_that_came_after_a_failure_counts_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.http_retry.FIRST_WAIT_SECONDS", 0.001)
    with chat_server(lambda body: (500, {}) if len(server.bodies) == 1 else prompt_of(body)) as server:
        column = ANSWER | {"max_tokens": 100}
        run(write(tmp_path, rows=1, columns=[NUMBER, QUESTION, column]), server.url, tmp_path / "rows")
        recipe = write(tmp_path, rows=2, columns=[NUMBER, QUESTION, column], budget={"requests": 2})
        with pytest.raises(Conflict, match="2 requests and") as caught:
            run(recipe, server.url, tmp_path / "rows")
    # 15 of the answer, and what the failure may have used: 100 of an answer, and a prompt of at most its bytes.
    prompt = len("Question 0 about printers?") + 16
    assert f"2 requests and {15 + 100 + prompt} tokens" in str(caught.value)


def test_other_rules_of_redaction_reuse_no_response(tmp_path: Path) -> None:
    """A stored response has passed the rules of its time; what those have replaced or left cannot be seen in it."""
    rules = tmp_path / "people.rules"
    rules.write_text("Ann => [NAME]\n")
    recipe = write(tmp_path, rows=2, redact=["./people.rules"])

    def digests() -> tuple[str, ...]:
        generation = stage(recipe, server.url)
        return tuple(generation.inputs().values())

    with chat_server(lambda body: f"Ask Ann or Bob. {prompt_of(body)}") as server:
        _, rows = run(recipe, server.url, tmp_path / "rows")
        before = digests()
        rules.write_text("Bob => [NAME]\n")
        assert digests() != before
        _, others = run(recipe, server.url, tmp_path / "rows")
        assert len(server.bodies) == 4
    assert [row["response"].startswith("Ask [NAME] or Bob") for row in rows] == [True, True]
    assert [row["response"].startswith("Ask Ann or [NAME]") for row in others] == [True, True]


def test_a_stored_digest_confirms_no_guess_of_a_prompt(tmp_path: Path, server: ChatServer) -> None:
    """Keys of responses need the key of the corpus: with another one, the same requests have other digests."""

    def keys(target: Path, **fields: Any) -> set[str]:
        run(write(tmp_path, rows=3), server.url, target, **fields)
        return {
            json.loads(line)["key"] for line in (target / "responses/responses-00000.jsonl").read_text().splitlines()
        }

    first = keys(tmp_path / "first")
    assert keys(tmp_path / "again") == first
    assert not keys(tmp_path / "others", redaction_key=b"another") & first


@pytest.mark.parametrize(
    ("budget", "most"), [({"requests": 7}, 7), ({"tokens": 1_000}, 66), ({"money": 0.000_1, "tokens": 10**9}, 5)]
)
def test_a_budget_is_never_exceeded_and_rows_are_kept(
    tmp_path: Path, server: ChatServer, budget: dict[str, Any], most: int
) -> None:
    prices = {"helper": {"input": 1, "output": 2}}
    column = ANSWER | {"max_tokens": 20}
    recipe = write(tmp_path, rows=100, columns=[NUMBER, QUESTION, column], budget=budget, prices=prices)
    with pytest.raises(Conflict, match="could exceed budget") as caught:
        run(recipe, server.url, tmp_path / "rows", concurrency=5)
    assert caught.value.code == "CORPUS_BUDGET_SPENT"
    assert 0 < len(server.bodies) <= most
    index = read_index(tmp_path / "rows")
    assert index
    assert index.report["stopped"] in {f"budget.{bound}" for bound in budget}
    kept = rows_of(tmp_path / "rows")
    assert 0 < len(kept) <= most
    sent = len(server.bodies)
    with pytest.raises(Conflict):
        run(recipe, server.url, tmp_path / "rows")
    assert len(server.bodies) <= most
    _, rows = run(
        write(tmp_path, rows=100, columns=[NUMBER, QUESTION, column], prices=prices), server.url, tmp_path / "rows"
    )
    assert len(rows) == 100
    assert rows[: len(kept)] == kept
    assert (len(server.bodies), server.repeated) == (100, 0), sent


def test_other_peoples_models_need_terms_and_our_own_do_not(tmp_path: Path, server: ChatServer) -> None:
    with pytest.raises(InvalidRequest, match=r"helper \(http") as caught:
        run(write(tmp_path, terms=None), server.url, tmp_path / "rows")
    assert (caught.value.code, len(server.bodies)) == ("CORPUS_TERMS_UNSTATED", 0)
    run(write(tmp_path, terms=None), server.url, tmp_path / "rows", accepts_terms=True)
    assert len(server.bodies) == 10
    ours = [NUMBER, QUESTION, ANSWER | {"model": "ours"}]
    run(write(tmp_path, terms=None, columns=ours), server.url, tmp_path / "ours")
    assert server.headers[-1]["Authorization"] == "Bearer mens-key"
    line = json.loads((tmp_path / "ours" / "part-00000.sources.jsonl").read_bytes().splitlines()[0])
    assert line["generator"]["a"]["endpoint"] == "installation"
    assert "terms" not in line["generator"]["a"]


SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
HOSTILE: dict[str, tuple[Any, str]] = {
    "secret": (f"Use {SECRET} for it.", "SECRET"),
    "cut off": ({"message": {"content": "The begin"}, "finish_reason": "length"}, "CUT_OFF"),
    "refusal": ({"message": {"content": None, "refusal": "I will not"}, "finish_reason": "stop"}, "MODEL_REFUSED"),
    "filtered": ({"message": {"content": ""}, "finish_reason": "content_filter"}, "MODEL_REFUSED"),
    "empty": ("  \n", "EMPTY"),
    "only thoughts": ("<think>What does he want?</think>", "EMPTY"),
    "endless thoughts": ("<think>What does he", "EMPTY"),
    "half a character": ("An emoji: \ud83d", "LONE_SURROGATE"),
    "long answer": ("x" * 1_100_000, "TOO_LONG"),
    "long prompt": ((400, {"error": {"message": "the prompt is too long"}}), "REQUEST_REFUSED"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_answers_that_cannot_be_a_row_are_counted_and_requested_once(tmp_path: Path, name: str) -> None:
    bad, code = HOSTILE[name]

    def answer(body: dict[str, Any]) -> Any:
        return bad if prompt_of(body).startswith("Question 4 ") else prompt_of(body)

    with chat_server(answer) as server:
        index, rows = run(write(tmp_path), server.url, tmp_path / "rows", concurrency=1)
        assert (len(rows), index.report["dropped"]) == (9, {code: 1})
        run(write(tmp_path), server.url, tmp_path / "rows")
        # What a server refuses may be a fault of the recipe or the server, so it is asked again in the next run.
        assert len(server.bodies) == 10 + (code == "REQUEST_REFUSED")
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything


def test_refusals_of_one_model_are_not_excused_by_answers_of_another(tmp_path: Path) -> None:
    second = ANSWER | {"name": "b", "model": "ours", "prompt": "Shorten: {{ item.a }}"}
    recipe = write(tmp_path, rows=40, columns=[NUMBER, QUESTION, ANSWER, second])
    is_bad = True

    def answer(body: dict[str, Any]) -> Any:
        refused = (400, {"error": {"message": "temperature is not supported"}})
        return refused if is_bad and body["model"] == "ours" else prompt_of(body)

    with chat_server(answer) as server:
        with pytest.raises(MensError, match="refuses every request") as caught:
            run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert caught.value.code == "CORPUS_MODEL_REFUSED"
        assert sum(body["model"] == "ours" for body in server.bodies) == 10
        is_bad = False
        _, rows = run(recipe, server.url, tmp_path / "rows", concurrency=1)
        assert len(rows) == 40


def test_a_request_that_is_refused_is_sent_once_in_a_run(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return (400, {"error": {"message": "no"}}) if prompt_of(body) == "the same" else prompt_of(body)

    (tmp_path / "prompts.txt").write_text("the same\nanother\n")
    columns = [{"name": "q", "sampler": "lines", "file": "prompts.txt"}, ANSWER]
    with chat_server(answer) as server:
        run(write(tmp_path, rows=30, columns=columns), server.url, tmp_path / "rows")
        assert sorted(map(prompt_of, server.bodies)) == ["another", "the same"]


@pytest.mark.parametrize("person", ["Ann, ann@example.org", f"key {SECRET}"])
def test_a_message_that_repeats_the_prompt_reaches_no_file_and_no_terminal(tmp_path: Path, person: str) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return 400, {"error": {"message": f"cannot read: {'x ' * 140}{person}"}}

    with chat_server(answer) as server:
        for rows in (5, 20):
            with pytest.raises(MensError, match="status 400") as caught:
                run(write(tmp_path, rows=rows), server.url, tmp_path / "rows", concurrency=1)
            shown = str(caught.value.as_dict())
            assert "ann@" not in shown
            assert SECRET[:8] not in shown
    everything = b"".join(path.read_bytes() for path in (tmp_path / "rows").rglob("*") if path.is_file())
    assert b"cannot read" not in everything


def test_reasoning_is_stripped_and_people_and_keys_reach_no_file(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> str:
        return f"<think>Ask ann@example.org.</think>Write to ann@example.org with {server.headers[-1]['Authorization']}. {prompt_of(body)}"

    with chat_server(answer) as server:
        _, rows = run(write(tmp_path), server.url, tmp_path / "rows", concurrency=1)
    assert rows[0]["response"].startswith("Write to <EMAIL_")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "rows").rglob("*") if path.is_file())
    for planted in (b"ann@example.org", KEY.encode(), b"mens-key"):
        assert planted not in everything
    line = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines()[0])
    assert line["redactions"]["EMAIL"] == 2
    assert "requests" not in line["generator"]["a"]


def test_digests_of_texts_before_redaction_are_not_kept(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "notes.txt").write_text("Call +49 30 901820 about it\nhow do I print?\n")
    columns = [{"name": "q", "sampler": "lines", "file": "notes.txt"}, ANSWER]
    _, rows = run(write(tmp_path, columns=columns), server.url, tmp_path / "rows")
    sources = map(json.loads, (tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines())
    for row, line in zip(rows, sources, strict=True):
        assert line.get("content_sha256") is None
        # The key of a request is a digest of its prompt.
        assert ("requests" in line["generator"]["a"]) == ("<PHONE_" not in row["prompt"])
    assert any("<PHONE_" in row["prompt"] for row in rows)


def test_a_prompt_with_a_secret_is_not_sent(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "notes.txt").write_text(f"token {SECRET}\nhow do I print?\n")
    columns = [{"name": "q", "sampler": "lines", "file": "notes.txt"}, ANSWER]
    index, _ = run(write(tmp_path, columns=columns), server.url, tmp_path / "rows")
    assert [prompt_of(body) for body in server.bodies] == ["how do I print?"]
    assert index.report["dropped"].keys() == {"SECRET", "DUPLICATE_EXACT"}


def test_checks_evals_and_duplicates(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "eval.jsonl").write_text(json.dumps({"prompt": "Question 2 about printers?", "answer": "?"}) + "\n")
    column = ANSWER | {"check": [{"check": "regex", "pattern": "[0-4] about"}]}
    recipe = write(tmp_path, columns=[NUMBER, QUESTION, column], decontaminate={"files": ["eval.jsonl"]})
    index, rows = run(recipe, server.url, tmp_path / "rows")
    assert index.report["dropped"] == {"CHECK_FAILED": 5, "CONTAMINATED": 1}
    assert len(rows) == 4
    same = QUESTION | {"template": "Question about printers, of the kind that many people ask us every day?"}
    index, _ = run(write(tmp_path, columns=[NUMBER, same, ANSWER]), server.url, tmp_path / "rows")
    assert index.report["dropped"] == {"DUPLICATE_EXACT": 9}
    near = [NUMBER, same | {"template": same["template"] + " {{ item.n }}"}, ANSWER]
    text = " It is said that a printer has many parts, and that each of them breaks at a time of its own, for a reason of its own."
    near[1]["template"] += text * 3
    index, _ = run(write(tmp_path, columns=near, dedup={"near": 0.8}), server.url, tmp_path / "rows")
    assert index.report["dropped"]["DUPLICATE_NEAR"] > 5


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "key": (
        lambda _: (401, {"error": {"message": f"Incorrect API key: {KEY}"}}),
        "status 401",
        "CORPUS_MODEL_REFUSED",
    ),
    "model": (lambda _: (404, {"error": {"message": "no such model"}}), "status 404", "CORPUS_MODEL_REFUSED"),
    "field": (
        lambda _: (400, {"error": {"message": f"temperature is not supported {KEY}"}}),
        "temperature is not supported",
        "CORPUS_MODEL_REFUSED",
    ),
    "not chat": (lambda _: {"text": "?"}, "not a chat completion", "CORPUS_MODEL_REFUSED"),
    "nothing": (lambda _: "", "All rows were left out: EMPTY 20", "CORPUS_OUTPUT_EMPTY"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_server_that_cannot_be_queried_has_a_code(tmp_path: Path, name: str) -> None:
    answer, reason, code = WRONG[name]
    with chat_server(answer) as server:
        with pytest.raises(MensError, match=reason) as caught:
            run(write(tmp_path, rows=20), server.url, tmp_path / "rows", concurrency=1)
        assert len(server.bodies) <= 20
    assert caught.value.code == code
    assert KEY not in str(caught.value.as_dict())
    assert read_index(tmp_path / "rows") is None
    everything = b"".join(path.read_bytes() for path in (tmp_path / "rows").rglob("*") if path.is_file())
    assert KEY.encode() not in everything


def test_a_response_without_an_end_ends_the_run(
    tmp_path: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.generation.asking.MAX_RESPONSE_BYTES", 100)
    with pytest.raises(InvalidRequest, match="more than"):
        run(write(tmp_path), server.url, tmp_path / "rows")


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.generation.asking.ATTEMPTS", 1)
    with pytest.raises(Unavailable, match="no response"):
        run(write(tmp_path), "http://127.0.0.1:9/v1", tmp_path / "rows")


def test_the_plan_is_an_upper_bound_and_sends_nothing(tmp_path: Path, server: ChatServer) -> None:
    second = ANSWER | {"name": "b", "prompt": "Shorten: {{ item.a }}", "max_tokens": 16}
    prices = {"helper": {"input": 1, "output": 2}}
    recipe = write(tmp_path, rows=40, columns=[NUMBER, QUESTION, ANSWER, second], prices=prices)
    [plan] = stage(recipe, server.url).plan(tmp_path / "rows")
    assert (plan.requests, plan.answer_tokens, plan.stored) == (80, 40 * (512 + 16), 0)
    assert plan.money == pytest.approx((plan.prompt_tokens + 2 * plan.answer_tokens) / 1e6)
    assert not server.bodies
    assert not (tmp_path / "rows").exists()
    run(recipe, server.url, tmp_path / "rows")
    [plan] = stage(recipe, server.url).plan(tmp_path / "rows")
    assert plan.stored == len(server.bodies) == 80


def test_values_that_are_objects_can_be_planned(tmp_path: Path, server: ChatServer) -> None:
    grader = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "a", "operation": "eq"}
    columns = [
        NUMBER,
        QUESTION,
        {"name": "p", "method": "prefer", "model": "helper", "grader": grader, "prompt": "{{ item.q }}"},
        {"name": "s", "method": "self_align", "model": "helper", "text": "{{ item.p.rejected }}"},
        {"name": "j", "method": "judge", "model": "helper", "prompt": "{{ item.s.answer }} {{ item.p.chosen_score }}"},
        {"name": "t", "template": "{{ item.p.chosen }} {{ item.s.tests }} {{ item.j }}"},
        ANSWER | {"prompt": "{{ item.t }}", "max_tokens": 1},
    ]
    [plan] = stage(write(tmp_path, rows=1, columns=columns), server.url).plan(tmp_path / "rows")
    assert plan.requests == 4 + 6 + 1 + 1
    # The texts that the last prompt repeats are longer than what the model may write itself.
    assert plan.prompt_tokens > 512


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"columns": [ANSWER | {"method": "dream"}]}, "columns.0"),
    "key": ({"columns": [ANSWER | {"promt": "x"}]}, "columns.0.promt: this field does not exist"),
    "model": ({"columns": [{"name": "a", "method": "answer"}]}, "columns.0.model: it is required"),
    "tokens": ({"columns": [NUMBER, QUESTION, ANSWER | {"max_tokens": 0}]}, "columns.2.max_tokens"),
    "later": ({"columns": [NUMBER, ANSWER, QUESTION]}, "columns.1.prompt uses item.q"),
    "no prompt": (
        {"columns": [NUMBER, ANSWER], "row": {"messages": []}},
        "columns.1.prompt|A column without `prompt`",
    ),
    "check": ({"columns": [NUMBER, QUESTION, ANSWER | {"check": [{"check": "regexp"}]}]}, "columns.2.check.0"),
    "terms": ({"terms": "yes"}, "terms"),
    "no model": (
        {"columns": [NUMBER, {"name": "q", "template": "x"}, {"name": "a", "template": "y"}]},
        "`terms` needs",
    ),
    "price": ({"prices": {"halper": {"input": 1, "output": 1}}}, "prices.halper: no column uses this model"),
    "money": ({"budget": {"money": 1}}, "budget.money needs the price"),
    "budget": ({"budget": {"requests": 0}}, "budget.requests"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recipe_names_the_field(tmp_path: Path, server: ChatServer, name: str) -> None:
    fields, reason = BAD[name]
    with pytest.raises(InvalidRequest, match=reason) as caught:
        run(write(tmp_path, **fields), server.url, tmp_path / "rows")
    assert caught.value.code == "CORPUS_RECIPE_INVALID"
    assert caught.value.param
    assert not server.bodies


def test_a_missing_eval_file_is_found_before_the_first_request(tmp_path: Path, server: ChatServer) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        run(write(tmp_path, decontaminate={"files": ["none.jsonl"]}), server.url, tmp_path / "rows")
    assert not server.bodies


def test_golden_bytes(tmp_path: Path, server: ChatServer) -> None:
    """If this fails because the output was changed on purpose, raise VERSION too."""
    columns = [NUMBER, QUESTION, ANSWER | {"model": "ours"}]
    index, _ = run(write(tmp_path, columns=columns, row=ROW), server.url, tmp_path / "rows")
    assert (index.shards[0].sha256[:16], str(index.shards[0].sources_sha256)[:16]) == (
        "fa804b8b517433a4",
        "32dd77851de2e35f",
    )
