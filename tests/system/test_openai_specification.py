"""A real installation's responses on OpenAI's routes match OpenAI's own specification.

Responses that need no model are checked in tests/api/openai/test_specification.py, and those about evals in
test_examples.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.openai_specification import OpenAISpecification
from tests.system.fetched import environment
from tests.system.loop import BASE, ROOT, Installation

pytestmark = pytest.mark.network

CHAT, CHUNK = "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"
COMPLETION, RESPONSE, EVENT = "CreateCompletionResponse", "Response", "ResponseStreamEvent"
TOOLS: Any = json.loads((ROOT / "examples" / "tools.jsonl").read_text(encoding="utf-8").splitlines()[0])["tools"]
FUNCTION: Any = {"name": "get_weather", "parameters": TOOLS[0]["function"]["parameters"]}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
FORCED = {"type": "function", "name": FUNCTION["name"]}
LOGPROBS = "message.output_text.logprobs"
COUNT, WEATHER = "Count from 1 to 5.", "What is the weather like in Paris today?"
SCHEMA: Any = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
FORMAT = {"type": "json_schema", "name": "colour", "schema": SCHEMA}


@pytest.fixture(scope="module")
def specification() -> OpenAISpecification:
    return OpenAISpecification(environment("checkers").parents[1])


@pytest.fixture
def http(installation: Installation) -> Iterator[httpx.Client]:
    with installation.connection.client() as client:
        yield client


def test_what_does_not_fit_is_found(specification: OpenAISpecification) -> None:
    file = {"id": "f", "object": "file", "bytes": 1, "created_at": 1, "filename": "a", "purpose": "fine-tune"}
    assert specification.fault("OpenAIFile", file | {"status": "processed"}) is None
    assert "expires_at" in str(specification.fault("OpenAIFile", file | {"status": "processed", "expires_at": None}))
    assert "status" in str(specification.fault("OpenAIFile", file))


@pytest.mark.parametrize(
    ("path", "whole", "piece", "request_"),
    [
        ("chat/completions", CHAT, CHUNK, {}),
        ("chat/completions", CHAT, CHUNK, {"max_tokens": 2}),
        ("chat/completions", CHAT, CHUNK, {"n": 2, "temperature": 1}),
        ("chat/completions", CHAT, CHUNK, {"logprobs": True, "top_logprobs": 2}),
        ("chat/completions", CHAT, CHUNK, {"content": WEATHER, "tools": TOOLS}),
        ("chat/completions", CHAT, CHUNK, {"content": WEATHER, "tools": TOOLS, "tool_choice": "required"}),
        ("chat/completions", CHAT, CHUNK, {"content": WEATHER, "functions": [FUNCTION]}),
        ("completions", COMPLETION, COMPLETION, {"prompt": ["Mens", "a"], "logprobs": 2}),
        ("completions", COMPLETION, COMPLETION, {"prompt": "Mens", "echo": True}),
        ("responses", RESPONSE, EVENT, {"input": COUNT}),
        ("responses", RESPONSE, EVENT, {"input": COUNT, "max_output_tokens": 2}),
        ("responses", RESPONSE, EVENT, {"input": WEATHER, "tools": [RESPONSES_TOOL]}),
        ("responses", RESPONSE, EVENT, {"input": COUNT, "model": BASE, "text": {"format": FORMAT}}),
        ("responses", RESPONSE, EVENT, {"input": WEATHER, "tools": [RESPONSES_TOOL], "tool_choice": FORCED}),
        ("responses", RESPONSE, EVENT, {"input": WEATHER, "tools": [RESPONSES_TOOL], "tool_choice": "required"}),
    ],
)
def test_model_s_answer_is_as_specified(
    specification: OpenAISpecification,
    http: httpx.Client,
    assistant: str,
    path: str,
    whole: str,
    piece: str,
    request_: Any,
) -> None:
    body = {"model": assistant, "temperature": 0, **request_}
    if path == "chat/completions":
        body["messages"] = [{"role": "user", "content": body.pop("content", COUNT)}]
    answer = http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert specification.fault(whole, answer.json()) is None, answer.text
    options = {} if path == "responses" else {"stream_options": {"include_usage": True}}
    pieces = list(streamed(http, f"/v1/{path}", body | {"stream": True} | options))
    assert len(pieces) > 1  # how many tokens are in one depends on how busy the replica is
    assert not [(fault, sent) for sent in pieces if (fault := specification.fault(piece, sent))]


def test_log_probabilities_of_a_response_are_as_specified(
    specification: OpenAISpecification, http: httpx.Client
) -> None:
    body = {"model": BASE, "temperature": 0, "input": COUNT, "top_logprobs": 2, "include": [LOGPROBS]}
    answer = http.post("/v1/responses", json=body).json()
    assert specification.fault(RESPONSE, answer) is None
    events = list(streamed(http, "/v1/responses", body | {"stream": True}))
    assert not [(fault, sent) for sent in events if (fault := specification.fault(EVENT, sent))]
    whole = [token["token"] for token in answer["output"][-1]["content"][0]["logprobs"]]
    pieces = [
        token["token"] for sent in events if sent["type"] == "response.output_text.delta" for token in sent["logprobs"]
    ]
    assert len(whole) > 2 and pieces == whole[: len(pieces)] and pieces


def streamed(http: httpx.Client, path: str, body: Any) -> Iterator[Any]:
    with http.stream("POST", path, json=body) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data not in (line, "[DONE]"):
                yield json.loads(data)


def test_files_are_as_specified(specification: OpenAISpecification, http: httpx.Client) -> None:
    rows = (ROOT / "examples" / "tools.jsonl").read_bytes() + b" "  # content of its own, that no job needs
    lasting, ending = {"purpose": "fine-tune"}, {"purpose": "fine-tune", "expires_after[anchor]": "created_at"}
    for fields in (lasting, ending | {"expires_after[seconds]": "3600"}):
        file = http.post("/v1/files", data=fields, files={"file": ("a.jsonl", rows)}).json()
        assert specification.fault("OpenAIFile", file) is None
        assert ("expires_at" in file) is (fields is not lasting)
        page = http.get("/v1/files", params={"limit": 1}).json()
        assert specification.fault("ListFilesResponse", page) is None
        assert (page["first_id"], page["last_id"]) == (file["id"], file["id"])
        assert specification.fault("OpenAIFile", http.get(f"/v1/files/{file['id']}").json()) is None
        assert specification.fault("DeleteFileResponse", http.delete(f"/v1/files/{file['id']}").json()) is None
    none = http.get("/v1/files", params={"purpose": "batch"}).json()
    assert specification.fault("ListFilesResponse", none) is None


def test_jobs_are_as_specified(
    specification: OpenAISpecification, http: httpx.Client, installation: Installation, assistant: str
) -> None:
    hyperparameters = {"n_epochs": 50, "learning_rate_multiplier": 1.5, "batch_size": "auto"}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    body = {
        "model": BASE,
        "training_file": installation.upload("tools.jsonl"),
        "method": method,
        "metadata": {"a": "b"},
    }
    created = http.post("/v1/fine_tuning/jobs", json=body).json()
    jobs = "/v1/fine_tuning/jobs"
    finished = installation.call("GET", f"/v1/adapters/{assistant}")["job_id"]
    for answer in (
        created,
        http.post(f"{jobs}/{created['id']}/cancel").json(),
        http.get(f"{jobs}/{finished}").json(),
    ):
        assert specification.fault("FineTuningJob", answer) is None
    assert specification.fault("ListPaginatedFineTuningJobsResponse", http.get(jobs).json()) is None
    for listed, schema in (("events", "ListFineTuningJobEvents"), ("checkpoints", "ListFineTuningJobCheckpoints")):
        page = http.get(f"{jobs}/{finished}/{listed}").json()
        assert page["data"]
        assert specification.fault(f"{schema}Response", page) is None


def test_models_are_as_specified(specification: OpenAISpecification, http: httpx.Client, assistant: str) -> None:
    assert specification.fault("ListModelsResponse", http.get("/v1/models").json()) is None
    assert specification.fault("Model", http.get(f"/v1/models/{assistant}").json()) is None


def test_errors_are_as_specified(specification: OpenAISpecification, http: httpx.Client) -> None:
    wrong = {"model": BASE, "messages": [{"role": "user", "content": "x"}], "temperature": -1}
    for answer in (
        http.get("/v1/models/nobody"),
        http.get("/v1/models", headers={"Authorization": "Bearer mens-wrong"}),
        http.post("/v1/chat/completions", json=wrong),
        http.post("/v1/chat/completions", json=wrong | {"stream": True}),
        http.post("/v1/fine_tuning/jobs", json={"model": BASE}),
        http.delete("/v1/chat/completions"),
    ):
        assert answer.is_client_error
        assert specification.fault("ErrorResponse", answer.json()) is None, answer.text
