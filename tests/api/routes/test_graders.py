"""Graders over the API, with the stock client: rewards, errors by their flags, and the usage of models that judge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import openai
import pytest
from anyio import CapacityLimiter
from fastapi import FastAPI
from openai import OpenAI
from openai.types.fine_tuning.alpha import GraderRunResponse

from api.routes import graders
from shared.database.tenancy import Role
from shared.graders.remote_models import RemoteModels
from shared.settings import RemoteModel
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.http_stub import http_stub
from tests.support.remote_server import RemoteServer
from tests.support.scripted_replica import ScriptedReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

EXACT = {
    "type": "string_check",
    "name": "exact",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.a }}",
    "operation": "eq",
}
JUDGE = {
    "type": "score_model",
    "name": "judge",
    "model": BASE,
    "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
}


@pytest.fixture
def replica() -> ScriptedReplica:
    replica = ScriptedReplica()
    message = {"role": "assistant", "content": json.dumps({"steps": [], "result": 0.25})}
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    replica.answers({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    return replica


@pytest.fixture
def openai_client(app: FastAPI, replica: ScriptedReplica) -> Iterator[OpenAI]:
    """The stock client with a trainer's key, of an installation with a scripted replica."""
    services = app.state.services
    _, secret = services.keys.create("trainer", "acme", Role.TRAINER)
    for replica_url in serve(replica):
        services.settings.serving_urls[:] = [replica_url]
        for url in serve(app, "on"):
            yield OpenAI(base_url=f"{url}/v1", api_key=secret, max_retries=0, _strict_response_validation=True)


def run(client: OpenAI, grader: Any, answer: str = "Yes", **item: Any) -> GraderRunResponse:
    return client.fine_tuning.alpha.graders.run(grader=grader, model_sample=answer, item=item or {"a": "Yes"})


def flags(response: GraderRunResponse) -> list[str]:
    return [name for name, value in response.metadata.errors.model_dump(by_alias=True).items() if value is True]


def test_a_grader_is_run(openai_client: OpenAI) -> None:
    found = run(openai_client, EXACT)
    assert (found.reward, found.metadata.name, found.metadata.type) == (1.0, "exact", "string_check")
    assert (found.metadata.scores, found.sub_rewards, flags(found)) == ({"exact": 1.0}, {}, [])
    assert found.metadata.token_usage is None
    assert run(openai_client, EXACT, "No").reward == 0


def test_a_multi_grader_has_its_parts_rewards(openai_client: OpenAI) -> None:
    similar = {
        "type": "text_similarity",
        "name": "s",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.a }}",
        "evaluation_metric": "rouge_l",
    }
    grader = {
        "type": "multi",
        "name": "both",
        "graders": {"exact": EXACT, "similar": similar},
        "calculate_output": "(exact + similar) / 2",
    }
    found = run(openai_client, grader, "yes sir")
    assert found.sub_rewards == {"exact": 0, "similar": pytest.approx(2 / 3)}
    assert found.reward == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("grader", "answer", "flag"),
    [
        ({**EXACT, "reference": "{{ item.missing }}"}, "x", "invalid_variable_error"),
        ({**EXACT, "input": "{{ sample.output_json.x }}"}, "no json", "sample_parse_error"),
        (
            {"type": "multi", "name": "m", "graders": {"exact": EXACT}, "calculate_output": "1 / exact"},
            "x",
            "other_error",
        ),
    ],
)
def test_a_grader_that_fails_gives_0_and_its_flag(openai_client: OpenAI, grader: Any, answer: str, flag: str) -> None:
    found = run(openai_client, grader, answer)
    assert (found.reward, flags(found)) == (0.0, [flag])


@pytest.mark.parametrize(
    ("grader", "code", "param"),
    [
        ({"type": "python", "name": "p", "source": "raise SystemExit"}, "SANDBOX_UNAVAILABLE", "grader"),
        (
            {**EXACT, "type": "text_similarity", "evaluation_metric": "cosine"},
            "REQUEST_INVALID",
            "grader.operation",
        ),
        ({**EXACT, "operation": "neq"}, "REQUEST_INVALID", "grader.operation"),
    ],
)
def test_what_cannot_be_run_is_refused(openai_client: OpenAI, grader: Any, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        run(openai_client, grader)
    body: Any = caught.value.body
    assert (body["mens"]["code"], caught.value.param) == (code, param)


def test_models_of_other_servers_judge_and_embed(openai_client: OpenAI, app: FastAPI) -> None:
    judge = JUDGE | {"model": "outside"}
    cosine = {name: value for name, value in EXACT.items() if name != "operation"}
    cosine |= {"type": "text_similarity", "evaluation_metric": "cosine"}
    assert flags(run(openai_client, judge, "north")) == ["other_error"], "no model is called so"
    with pytest.raises(openai.BadRequestError, match="MENS_GRADER_EMBEDDINGS"):
        run(openai_client, cosine, "north", a="north")
    server = RemoteServer()
    with (
        http_stub(server.respond) as url,
        RemoteModels({"outside": (target := RemoteModel(url=f"{url}/v1"))}, target) as models,
    ):
        app.state.services = replace(app.state.services, remote_models=models)
        found = run(openai_client, judge, "north")
        assert found.reward == 0.75
        assert found.to_dict()["model_grader_token_usage_per_model"] == {"outside": {"total_tokens": 9}}
        assert run(openai_client, cosine, "north", a="north").reward == pytest.approx(1.0)
        server.answers = [(401, {})]
        assert flags(run(openai_client, judge, "north")) == ["model_grader_server_error"]


def test_validate_returns_what_was_understood(openai_client: OpenAI) -> None:
    graders = openai_client.fine_tuning.alpha.graders
    found = graders.validate(grader={name: value for name, value in EXACT.items() if name != "name"})
    assert found.grader
    assert found.grader.name == "string_check"
    code: Any = {"type": "python", "name": "p", "source": "def grade(sample, item): return 1"}
    assert graders.validate(grader=code).grader, "it is well-formed, though it cannot be run here"
    with pytest.raises(openai.BadRequestError, match="not closed") as caught:
        graders.validate(grader={**EXACT, "input": "{{ item.a"})
    assert caught.value.param == "grader.input"


def test_a_model_judges_with_the_callers_names_and_usage(openai_client: OpenAI, replica: ScriptedReplica) -> None:
    found = run(openai_client, JUDGE, "So it is.")
    assert (found.reward, found.metadata.sampled_model_name, found.metadata.token_usage) == (0.25, BASE, 7)
    assert found.to_dict()["model_grader_token_usage_per_model"][BASE]["total_tokens"] == 7
    path, body = replica.asked[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "So it is."}]
    assert body["response_format"]["type"] == "json_schema"


def test_a_model_that_does_not_judge(openai_client: OpenAI, replica: ScriptedReplica) -> None:
    replica.answers({"choices": [{"message": {"content": "seven"}}]})
    assert flags(run(openai_client, JUDGE)) == ["model_grader_parse_error"]
    replica.answers({"choices": [{"message": {"content": None, "refusal": "No."}}]})
    assert flags(run(openai_client, JUDGE)) == ["model_grader_refusal_error"]
    replica.answers({"message": "down"}, status=500)
    failed = run(openai_client, JUDGE)
    assert flags(failed) == ["model_grader_server_error"]
    assert failed.metadata.errors.api_model_grader_server_error_details
    missing = run(openai_client, {**JUDGE, "model": "nothing"})
    assert flags(missing) == ["other_error"]
    assert "MODEL_NOT_FOUND" in json.dumps(missing.to_dict())


def test_runs_that_wait_for_a_model_hold_up_no_other_route(
    openai_client: OpenAI, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders, "RUNS_AT_ONCE", CapacityLimiter(1))
    replica.pieces = [replica.pieces[0][:5], replica.pieces[0][5:]]
    replica.go_on.clear()
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run, openai_client, JUDGE) for _ in range(3)]
        eventually(lambda: replica.asked)
        assert openai_client.models.list().data
        assert len(replica.asked) == 1, "the others wait for their turn"
        replica.go_on.set()
        assert [found.result().reward for found in runs] == [0.25] * 3


def test_a_viewer_may_not_and_runs_a_minute_are_limited(app: FastAPI, openai_client: OpenAI) -> None:
    _, secret = app.state.services.keys.create("viewer", "acme", Role.VIEWER)
    with pytest.raises(openai.PermissionDeniedError):
        run(openai_client.with_options(api_key=secret), EXACT)
    services = app.state.services
    app.state.services = replace(
        services, settings=services.settings.model_copy(update={"tenant_graders_per_minute": 2})
    )
    run(openai_client, EXACT)
    run(openai_client, EXACT)
    with pytest.raises(openai.RateLimitError):
        run(openai_client, EXACT)
