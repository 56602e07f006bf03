"""Recording answers: what is sent and kept, the cost limit, and continuing after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import export_project
from openai_migration.archive.folder import Archive
from openai_migration.prompts import choose_prompts
from openai_migration.record import (
    Bounds,
    ModelPlan,
    RecordedSampling,
    Recording,
    golden_file,
    questions,
    record_answers,
    sum_estimates,
    write_golden,
)
from tests.support.fake_openai import TUNED, FakeOpenAI, Response, ServedOpenAI, error_response

BASE = "gpt-4o-mini-2024-07-18"
DEFAULT_SAMPLING = RecordedSampling()


@pytest.fixture
def folder(openai: ServedOpenAI, tmp_path: Path) -> Path:
    with Archive(tmp_path / "a") as archive, openai.client(project="P") as client:
        export_project(client, archive)
        archive.finish()
    openai.fake.requests.clear()
    return tmp_path / "a"


def plan_for(
    folder: Path, sampling: RecordedSampling = DEFAULT_SAMPLING, limit: int = 3, model: str = TUNED
) -> ModelPlan:
    choice = choose_prompts(ArchiveContents(folder), "P", model, limit=limit)
    return ModelPlan("P", model, choice, list(questions(model, choice, sampling)))


def run(openai: ServedOpenAI, folder: Path, *plans: ModelPlan, bounds: Bounds = Bounds()) -> Recording:  # noqa: B008
    done = Recording()
    with Archive(folder) as archive, openai.client(project="P") as client:
        record_answers(client, archive, list(plans), bounds, done)
        for plan in plans:
            write_golden(archive, plan)
    return done


def golden(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / golden_file("P", TUNED)).read_text().splitlines()]


def bodies(fake: FakeOpenAI, patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bodies of chat requests, as they come."""
    seen: list[dict[str, Any]] = []
    patch.setattr(fake, "complete", lambda body: seen.append(body) or f"answer of {body['model']}")
    return seen


def test_model_and_control_answer_the_production_request(
    openai: ServedOpenAI, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bodies(openai.fake, monkeypatch)
    assert run(openai, folder, plan_for(folder)).answered == 6
    assert [body["model"] for body in sent] == [TUNED, BASE] * 3
    assert {(body["temperature"], body["seed"], body["logprobs"], body["top_logprobs"]) for body in sent} == {
        (0, 1337, True, 5)
    }
    lines = golden(folder)
    assert [[answer["model"] for answer in line["answers"]] for line in lines] == [[TUNED, BASE]] * 3
    answer = lines[0]["answers"][0]
    assert answer["response"]["choices"][0]["message"]["content"] == f"answer of {TUNED}"
    assert json.loads((folder / answer["file"]).read_bytes()) == answer["response"]


def test_samples_have_the_production_temperature_and_seeds_of_their_own(
    openai: ServedOpenAI, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bodies(openai.fake, monkeypatch)
    run(openai, folder, plan_for(folder, RecordedSampling(samples=2, temperature=0.7, control=False), limit=1))
    assert [(body["temperature"], body["seed"]) for body in sent] == [(0, 1337), (0.7, 1338), (0.7, 1339)]


def test_it_continues_where_it_was_interrupted(openai: ServedOpenAI, folder: Path) -> None:
    plan = plan_for(folder)
    first = run(openai, folder, plan, bounds=Bounds(requests=2))
    assert (first.answered, first.stopped) == (2, "--max-requests is reached")
    with Archive(folder) as archive:
        assert sum_estimates(archive, [plan]).requests == 4
    second = run(openai, folder, plan)
    assert (second.repeated, second.answered, second.stopped) == (2, 4, "")
    assert len(openai.fake.requests) == 6


def test_what_earlier_runs_have_recorded_stays(openai: ServedOpenAI, folder: Path) -> None:
    run(openai, folder, plan_for(folder, RecordedSampling(samples=2)))
    run(openai, folder, plan_for(folder, limit=2))
    lines = golden(folder)
    assert len(lines) == 3
    assert all(
        [answer["sample"] for answer in line["answers"] if answer["model"] == TUNED].count(0) == 1 for line in lines
    )
    assert all({answer["sample"] for answer in line["answers"]} == {0, 1, 2} for line in lines)
    run(openai, folder, plan_for(folder, RecordedSampling(max_answer_tokens=7), limit=1))
    first = next(
        line for line in golden(folder) if any(a["sampling"]["max_completion_tokens"] == 7 for a in line["answers"])
    )
    assert len(first["answers"]) == 6, "an answer of another length takes the place of the one before"


def test_a_bound_of_tokens_is_in_openais_own_count(openai: ServedOpenAI, folder: Path) -> None:
    done = run(openai, folder, plan_for(folder), bounds=Bounds(tokens=20))
    assert (done.answered, done.tokens, done.stopped) == (2, 28, "--max-tokens is reached")
    assert Bounds(requests=5, tokens=30).after(done) == Bounds(requests=3, tokens=2)


def test_a_model_without_logprobs_is_queried_without(
    openai: ServedOpenAI, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bodies(openai.fake, monkeypatch)
    refusal = error_response(400, "unsupported_parameter", "Unsupported parameter: 'logprobs'.")
    openai.fake.before = lambda number, _: refusal if number == 1 else None
    assert run(openai, folder, plan_for(folder, limit=1)).answered == 2
    assert "logprobs" not in sent[0]


def test_a_model_that_is_gone_is_queried_once_and_the_others_continue(openai: ServedOpenAI, folder: Path) -> None:
    gone = error_response(404, "model_not_found", "The model does not exist.")
    openai.fake.before = lambda number, _: gone if number == 1 else None
    done = run(openai, folder, plan_for(folder))
    assert (done.gone, done.refused, done.answered) == ([TUNED], 1, 3)
    assert TUNED in done.describe()


def test_a_refused_prompt_is_counted_and_sent_again_next_time(openai: ServedOpenAI, folder: Path) -> None:
    openai.fake.before = lambda number, _: error_response(400, None, "No.") if number == 1 else None
    assert run(openai, folder, plan_for(folder)).refused == 1
    done = run(openai, folder, plan_for(folder))
    assert (done.refused, done.answered, done.repeated) == (0, 1, 5)


def test_an_answer_that_is_none_is_a_refusal(openai: ServedOpenAI, folder: Path) -> None:
    openai.fake.before = lambda number, _: Response(200, b"<html>") if number == 1 else None
    assert run(openai, folder, plan_for(folder)).refused == 1


def test_the_estimate_is_bounded_by_the_longest_answers(folder: Path) -> None:
    plan = plan_for(folder, RecordedSampling(max_answer_tokens=100))
    with Archive(folder) as archive:
        cost = sum_estimates(archive, [plan])
    assert (cost.requests, cost.answer_tokens) == (6, 600)
    assert 50 < cost.prompt_tokens < 500
