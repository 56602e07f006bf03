"""Input that Python's parser accepts as JSON, but that no route may process."""

from __future__ import annotations

import json

import pytest

from api.inference.strict_json import refuse_loose_json
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"a": [1, {"b": NaN}], "c": Infinity}', "a.1.b"),
        ('{"a": {"b": [0, 1e999]}}', "a.b.1"),
        ('[{"a": "\\ud800"}]', "0.a"),
        ('{"a": {"\\ud800": 1}}', "a"),
        ('"\\udc00"', None),
        ("-Infinity", None),
    ],
)
def test_the_first_such_field_is_named(body: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_loose_json(body.encode())
    assert refused.value.param == param
    assert refused.value.message.encode()


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"a": "NaN", "b": ["Infinity", "1e999", "\U0001f600", "\\ud800"], "NaN": 1e300}),
        '{"a": NaN',
        '{"a": "\\ud800"',
        "[" * 100_000 + "NaN",
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_everything_else_is_left_to_its_route(body: str) -> None:
    refuse_loose_json(body.encode())
