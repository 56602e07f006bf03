"""No field of a request body accepts a string or a boolean as a number, or anything else as a boolean.

The test walks the types of every route's body, so it also covers fields that are added later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel, Strict

OLLAMA = "/api/"
"""Ollama's own server decides what these take; docs/ollama.md has it."""
SCORECARD = ("Scorecard", "SamplingSettings")
"""Models of files that the original's scorecards have written."""


def lenient_fields(kind: Any, field: str, *, is_strict: bool, seen: frozenset[Any] = frozenset()) -> Iterator[str]:
    """The fields in a type, by model and name, that are numbers or truth values and convert other values to one."""
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        is_strict = is_strict or _strict(marks)
    if kind in (int, float, bool) and not is_strict:
        yield field
    for part in get_args(kind):
        yield from lenient_fields(part, field, is_strict=is_strict, seen=seen)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        for name, info in kind.model_fields.items():
            inner = _strict(info.metadata)
            yield from lenient_fields(info.annotation, f"{kind.__name__}.{name}", is_strict=inner, seen=seen | {kind})


def _strict(marks: Any) -> bool:
    return any(isinstance(mark, Strict) and mark.strict for mark in marks)


def test_numbers_and_truth_values_of_every_body_are_strict(app: FastAPI) -> None:
    routes = [route for route in app.routes if isinstance(route, APIRoute) and not route.path.startswith(OLLAMA)]
    bodies = [body.field_info for route in routes for body in route.dependant.body_params]
    found = {
        field
        for body in bodies
        for field in lenient_fields(body.annotation, body.alias or "", is_strict=_strict(body.metadata))
    }
    assert len(bodies) > 20
    assert sorted(field for field in found if not field.startswith(SCORECARD)) == []


MERGE, IMPORT = {"adapter": "x"}, {"weights_file": "f", "sidecar_file": "f", "model": "tiny", "name": "old"}
TUNE = {"model": "tiny", "training_file": "file-1"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", {"kind": "import", "contract": IMPORT | {"publish": "no"}}, "contract.publish"),
        ("/v1/jobs", {"kind": "merge", "contract": MERGE | {"max_kl_nats": True}}, "contract.max_kl_nats"),
        ("/v1/jobs", {"kind": "merge", "contract": MERGE | {"max_kl_nats": "0.5"}}, "contract.max_kl_nats"),
        ("/v1/jobs", {"kind": "merge", "contract": MERGE, "priority": True}, "priority"),
        ("/v1/jobs", {"kind": "merge", "contract": MERGE, "max_gpu_minutes": "5"}, "max_gpu_minutes"),
        ("/v1/fine_tuning/jobs", TUNE | {"seed": True}, "seed"),
        ("/v1/fine_tuning/jobs", TUNE | {"hyperparameters": {"n_epochs": True}}, "hyperparameters.n_epochs"),
        ("/v1/fine_tuning/jobs", TUNE | {"hyperparameters": {"batch_size": "3"}}, "hyperparameters.batch_size"),
        ("/v1/fine_tuning/jobs", TUNE | {"mens": {"priority": "0"}}, "mens.priority"),
    ],
)
def test_another_type_is_refused_at_its_field(client: TestClient, path: str, body: Any, field: str) -> None:
    response = client.post(path, json=body)
    assert (response.status_code // 100, response.json()["error"]["param"]) == (4, field)


@pytest.mark.parametrize("value", ["auto", 2])
def test_hyperparameters_are_taken_as_openai_takes_them(client: TestClient, value: Any) -> None:
    given = {"n_epochs": value, "batch_size": value, "learning_rate_multiplier": value}
    response = client.post("/v1/fine_tuning/jobs", json=TUNE | {"hyperparameters": given})
    assert response.json()["error"]["mens"]["code"] == "FILE_NOT_FOUND", "the next thing that is looked at"


def test_a_priority_is_not_changed_to_a_truth_value(client: TestClient) -> None:
    assert client.patch("/v1/jobs/ftjob-1", json={"priority": True}).json()["error"]["param"] == "priority"
