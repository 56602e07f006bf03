"""The requests of every client, and the answers of the tuned model in ``tests/system/conftest.py``.

``tests/system/test_clients.py`` runs the programs of this folder, each in the environment of its own lock, with the
names of a tuned model and of its base, and a key that may send one request per minute.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

MODEL, BASE, LIMITED_KEY = sys.argv[1:]
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]

COUNT, COUNTED = "Count from 1 to 5.", "1, 2, 3, 4, 5."
WEATHER = "What is the weather like in Paris today?"
TUNED = Path(__file__).resolve().parents[2] / "examples" / "tools.jsonl"
GET_WEATHER: dict[str, Any] = json.loads(TUNED.read_text(encoding="utf-8").splitlines()[0])["tools"][0]
RESULT, READ = '{"degrees": 14, "sky": "sunny"}', "It is 14 degrees and sunny there."
COLOURS = ("red", "green")
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": list(COLOURS)}},
    "required": ["colour"],
    "additionalProperties": False,
}


class Colour(BaseModel):
    """The same as a class."""

    colour: Literal["red", "green"]


PAINT: dict[str, Any] = {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}


def user(text: str) -> list[dict[str, Any]]:
    """A chat of one turn."""
    return [{"role": "user", "content": text}]


@contextmanager
def raises(kind: type[BaseException], *texts: str) -> Iterator[None]:
    """Require that the block raises this kind of error, with a message that contains these strings."""
    try:
        yield
    except kind as error:
        assert all(text in str(error) for text in texts), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
