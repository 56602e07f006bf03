"""Every refusal of the requests that create and run an eval names the field, so that a form can show it there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.builders import BASE

ANSWER = "{{ sample.output_text }}"
EXPECTED = "{{ item.answer }}"
JUDGED = [{"role": "user", "content": f"{EXPECTED} {ANSWER}"}]
CRITERIA: dict[str, dict[str, Any]] = {
    "string_check": {"input": ANSWER, "reference": EXPECTED, "operation": "eq"},
    "text_similarity": {
        "input": ANSWER, "reference": EXPECTED, "evaluation_metric": "rouge_l", "pass_threshold": 0.5,
    },
    "label_model": {"model": BASE, "labels": ["good", "bad"], "passing_labels": ["good"], "input": JUDGED},
    "score_model": {
        "model": BASE, "range": [1, 7], "pass_threshold": 5, "input": JUDGED, "sampling_params": {"temperature": 0.5},
    },
    "regex": {"source": "", "mens": {"check": "regex", "pattern": "[0-9]", "input": ANSWER}},
    "json_schema": {"source": "", "mens": {"check": "json_schema", "json_schema": {"type": "object"}}},
    "compiles": {"source": "", "mens": {"check": "compiles", "language": "json"}},
    "tool_calls": {"source": "", "mens": {"check": "tool_calls", "expected": [{"name": "look"}]}},
    "pass_at_k": {
        "source": "",
        "mens": {
            "check": "pass_at_k", "k": 1,
            "of": {"type": "string_check", "input": ANSWER, "reference": EXPECTED, "operation": "eq"},
        },
    },
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"question": {}, "answer": {}}, "required": ["question"]}
VALUES: tuple[Any, ...] = (None, True, -1, 3, "", "(", "{{ item.nothing }}", "{{", [], ["other"], {}, {"type": 3})
MISSING = object()


def criterion(kind: str) -> dict[str, Any]:
    """The request's form of a criterion, with its name and type."""
    body = CRITERIA[kind]
    return {"type": "python" if "source" in body else kind, "name": kind, **deepcopy(body)}


def eval_of(*criteria: dict[str, Any]) -> dict[str, Any]:
    config = {"type": "custom", "item_schema": SCHEMA, "include_sample_schema": True}
    return deepcopy(
        {
            "name": "Faults",
            "metadata": {"file": "file-1"},
            "data_source_config": config,
            "testing_criteria": [*criteria],
        }
    )


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields and items of a request."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from paths_in(inner, (*path, key))


def faulty(body: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Copies of a request in which one field is missing or has another value, with the field's path."""
    for path in paths_in(body):
        for value in (MISSING, *VALUES):
            changed = deepcopy(body)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            if value is MISSING:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
            yield ".".join(map(str, path)), "(missing)" if value is MISSING else value, changed


def unnamed(client: TestClient, url: str, body: dict[str, Any], related: dict[str, str]) -> list[str]:
    """Refusals that name neither the wrong field, nor a part of it, nor what contains it, nor its related field."""
    wrong, refusals = [], 0
    for path, value, changed in faulty(body):
        response = client.post(url, json=changed)
        if response.status_code < 400:
            continue
        refusals += 1
        error = response.json()["error"]
        param = error["param"] or ""
        names = (path, related.get(path, path))
        is_named = any(
            f"{param}.".startswith(f"{name}.") or (param and f"{name}.".startswith(f"{param}.")) for name in names
        )
        if not is_named:
            wrong.append(f"{path}={value!r}: {param!r}: {error['message']}")
    assert refusals > 20
    return wrong


@pytest.mark.parametrize("kind", CRITERIA)
def test_refusal_of_an_eval_names_the_field(client: TestClient, kind: str) -> None:
    body = eval_of(criterion(kind))
    assert client.post("/v1/evals", json=body).status_code == 201
    related = {"data_source_config.item_schema.properties.answer": "testing_criteria.0"}  # the template that reads it
    related |= {"testing_criteria.0.range.0": "testing_criteria.0.range"}
    assert unnamed(client, "/v1/evals", body, related) == []


def test_refusal_of_two_criteria_of_one_name_names_the_second(client: TestClient) -> None:
    refusal = client.post("/v1/evals", json=eval_of(criterion("regex"), criterion("regex"))).json()["error"]
    assert refusal["param"] == "testing_criteria.1.name"


def test_refusal_names_every_criterion_without_a_threshold(client: TestClient) -> None:
    similar = [criterion("text_similarity") | {"name": name, "pass_threshold": None} for name in "ab"]
    del similar[0]["pass_threshold"]
    refusal = client.post("/v1/evals", json=eval_of(*similar)).json()["error"]
    fields = [fault["param"] for fault in refusal["mens"]["details"]["errors"]]
    assert fields == ["testing_criteria.0.pass_threshold", "testing_criteria.1.pass_threshold"]


ROWS = [{"item": {"question": "How much?", "answer": "Two."}}, {"item": {"question": "When?", "answer": "Now."}}]


@pytest.fixture
def run_body(client: TestClient) -> dict[str, Any]:
    """Request for a run, as the console makes it."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    file = client.post("/v1/files", data={"purpose": "evals"}, files={"file": ("rows.jsonl", lines)}).json()["id"]
    prompt = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}
    source = {"type": "completions", "model": BASE, "input_messages": prompt, "source": {"type": "file_id", "id": file}}
    sampling = {"temperature": 0, "max_completion_tokens": 16}
    return {"name": "Faults", "data_source": source | {"sampling_params": sampling}, "mens": {"samples": 1}}


def test_refusal_of_a_run_names_the_field(client: TestClient, run_body: dict[str, Any]) -> None:
    url = f"/v1/evals/{client.post('/v1/evals', json=eval_of(criterion('string_check'))).json()['id']}/runs"
    assert client.post(url, json=run_body).status_code == 201
    related = {"data_source.input_messages.template.0.content": "data_source.source.id"}  # rows without the named field
    assert unnamed(client, url, run_body, related) == []


@pytest.mark.parametrize("line", ['{"item": {"question": "How much?"}}', "[]", '{"item": 1}', '{"item": ', ""])
def test_refusal_of_a_file_of_a_run_names_its_field(client: TestClient, run_body: dict[str, Any], line: str) -> None:
    url = f"/v1/evals/{client.post('/v1/evals', json=eval_of(criterion('string_check'))).json()['id']}/runs"
    files = {"file": ("rows.jsonl", f"{line}\n")}
    file = client.post("/v1/files", data={"purpose": "evals"}, files=files).json()["id"]
    run_body["data_source"]["source"]["id"] = file
    assert client.post(url, json=run_body).json()["error"]["param"] == "data_source.source.id"
