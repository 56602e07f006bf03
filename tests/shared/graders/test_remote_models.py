"""Models on other servers that judge, requested over HTTP on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pydantic import SecretStr, ValidationError

from cli.standalone.ports import free_port
from shared import http_retry
from shared.errors import Code, InvalidRequest, MensError, Unavailable
from shared.graders.grading import check_runnable, grade, make_sample
from shared.graders.remote_models import RemoteModels
from shared.graders.types import GRADER
from shared.settings import RemoteModel, Settings, read_settings
from tests.support.http_stub import http_stub
from tests.support.remote_server import RemoteServer

JUDGE = GRADER.validate_python(
    {"type": "score_model", "name": "j", "model": "outside", "input": [{"role": "user", "content": "Rate it."}]}
)
COSINE = GRADER.validate_python(
    {
        "type": "text_similarity",
        "name": "c",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.a }}",
        "evaluation_metric": "cosine",
    }
)


@pytest.fixture
def outside() -> RemoteServer:
    return RemoteServer()


@pytest.fixture
def remote(outside: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteModels]:
    monkeypatch.setattr(http_retry, "FIRST_WAIT_SECONDS", 0.01)
    with http_stub(outside.respond) as url:
        judge = RemoteModel(url=f"{url}/v1", key=SecretStr("a-secret"), model="large-1")
        with RemoteModels({"outside": judge}, RemoteModel(url=f"{url}/v1/", model="vectors-1")) as models:
            yield models


def test_judge_of_another_server_gets_its_own_name_and_key(remote: RemoteModels, outside: RemoteServer) -> None:
    found = grade(JUDGE, {}, make_sample("x"), remote.complete)
    assert (found.score, found.usage) == (0.75, {"outside": {"total_tokens": 9}})
    ((target, authorization, request),) = outside.asked
    assert (target, authorization, request["model"]) == ("/v1/chat/completions", "Bearer a-secret", "large-1")
    assert "outside" in remote
    assert "large-1" not in remote


@pytest.mark.parametrize(("text", "expected"), [("north", 1.0), ("east", 0.0), ("north-east", 0.5**0.5)])
def test_cosine_is_of_the_embeddings_in_the_order_of_the_texts(
    remote: RemoteModels, outside: RemoteServer, text: str, expected: float
) -> None:
    check_runnable(COSINE, embeds=remote.embeds)
    assert grade(COSINE, {"a": "north"}, make_sample(text), embed=remote.embed).score == pytest.approx(expected)
    ((target, authorization, request),) = outside.asked
    assert (target, authorization) == ("/v1/embeddings", None)
    assert request == {"input": [text, "north"], "model": "vectors-1"}


def test_cosine_without_a_model_is_refused_before_and_while_judging() -> None:
    with RemoteModels({}, None) as nothing:
        for refused in (
            lambda: check_runnable(COSINE, embeds=nothing.embeds),
            lambda: grade(COSINE, {"a": "b"}, make_sample("x"), embed=nothing.embed),
            lambda: grade(COSINE, {"a": "b"}, make_sample("x")),
        ):
            with pytest.raises(InvalidRequest, match="MENS_GRADER_EMBEDDINGS") as caught:
                refused()
            assert caught.value.code is Code.GRADER_UNSUPPORTED


def test_failures_that_can_pass_are_retried(remote: RemoteModels, outside: RemoteServer) -> None:
    outside.answers = [(503, {}), (429, {})]
    assert grade(JUDGE, {}, make_sample("x"), remote.complete).score == 0.75
    assert len(outside.asked) == 3


@pytest.mark.parametrize(
    ("answers", "kind", "code", "asked"),
    [
        ([(500, {})] * 3, Unavailable, Code.GRADER_MODEL_UNAVAILABLE, 3),
        ([(401, {"error": "secret text"})], Unavailable, Code.GRADER_MODEL_UNAVAILABLE, 1),
        ([(302, {})], Unavailable, Code.GRADER_MODEL_UNAVAILABLE, 1),
        ([(400, {"error": "no response_format"})], InvalidRequest, Code.GRADER_MODEL_ANSWER_INVALID, 1),
        ([(200, [1])], InvalidRequest, Code.GRADER_MODEL_ANSWER_INVALID, 1),
        ([(200, {"choices": []})], InvalidRequest, Code.GRADER_MODEL_ANSWER_INVALID, 1),
    ],
)
def test_what_cannot_is_said(
    remote: RemoteModels,
    outside: RemoteServer,
    answers: list[tuple[int, object]],
    kind: type[MensError],
    code: Code,
    asked: int,
) -> None:
    outside.answers = answers.copy()
    with pytest.raises(kind) as caught:
        grade(JUDGE, {}, make_sample("x"), remote.complete)
    assert (caught.value.code, len(outside.asked)) == (code, asked)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [{}, {"data": [{"index": 0, "embedding": [1]}]}, {"data": [{"index": 0, "embedding": "x"}] * 2}]
)
def test_values_that_are_not_embeddings_are_reported(
    remote: RemoteModels, outside: RemoteServer, answer: object
) -> None:
    outside.answers = [(200, answer)]
    with pytest.raises(InvalidRequest) as caught:
        remote.embed(["a", "b"])
    assert caught.value.code is Code.GRADER_MODEL_ANSWER_INVALID


def test_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_retry, "FIRST_WAIT_SECONDS", 0.01)
    away = RemoteModel(url=f"http://127.0.0.1:{free_port()}/v1")
    with RemoteModels({"outside": away}, None) as models, pytest.raises(Unavailable, match="ConnectError") as caught:
        models.complete({"model": "outside"})
    assert caught.value.retryable


def test_they_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"outside": {"url": "https://models.example/v1", "key": "k", "model": "large-1"}}
    monkeypatch.setenv("MENS_GRADER_MODELS", json.dumps(given))
    monkeypatch.setenv("MENS_GRADER_EMBEDDINGS", '{"url": "https://models.example/v1", "model": "vectors-1"}')
    settings = read_settings(Settings)
    assert settings.grader_models["outside"].key.get_secret_value() == "k"
    assert settings.grader_embeddings == RemoteModel(url="https://models.example/v1", model="vectors-1")
    monkeypatch.setenv("MENS_GRADER_MODELS", '{"outside": {"url": "ftp://models.example"}}')
    with pytest.raises(InvalidRequest, match="MENS_GRADER_MODELS_OUTSIDE_URL"):
        read_settings(Settings)


@pytest.mark.parametrize("url", ["models.example/v1", "https://user:secret@models.example/v1", "https://a/v1?k=1"])
def test_addresses_that_are_none_or_hold_secrets_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        RemoteModel(url=url)
