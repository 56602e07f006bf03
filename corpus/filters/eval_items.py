"""Items of evals, which rows of a corpus must not contain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import Code, InvalidRequest, NotFound
from shared.hashing import digest_json

REFERENCES = frozenset(
    (
        "expect",
        "expected",
        "reference",
        "answer",
        "answers",
        "response",
        "output",
        "completion",
        "solution",
        "target",
        "ideal",
    )
)
"""Keys of an item that hold its reference."""
PROMPTS = frozenset(("prompt", "question", "query", "instruction", "input", "context"))
"""Keys of an item that hold its prompt."""


@dataclass(frozen=True, slots=True)
class EvalContent:
    """The items of an eval.

    Attributes:
        name: for reports.
    """

    name: str
    items: Sequence[Mapping[str, Any]]

    def digest(self) -> str:
        """Return the SHA-256 of the items; the eval's name is not part of it."""
        return digest_json(list(self.items))


def read_items(path: Path) -> EvalContent:
    """Read the items of a JSONL file, or of a JSON file that is a list.

    Raises:
        NotFound: ``CORPUS_SOURCE_MISSING``.
        InvalidRequest: ``CORPUS_RECIPE_INVALID``.
    """
    try:
        text = path.read_text(encoding="utf-8")
        items = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except FileNotFoundError:
        raise NotFound(
            Code.CORPUS_SOURCE_MISSING,
            f"The eval file {path} does not exist.",
            remedy="Correct `decontaminate.files`; paths start at the mix file's folder (--root changes it).",
            param="decontaminate.files",
        ) from None
    except ValueError as error:
        raise _invalid_items(path, str(error)) from None
    if not items or not all(isinstance(item, dict) for item in items):
        raise _invalid_items(path, "it has no items, or an item is not an object")
    return EvalContent(path.name, items)


def _invalid_items(path: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        Code.CORPUS_RECIPE_INVALID,
        f"The eval file {path} is neither JSONL nor a list of JSON objects: {why}.",
        remedy="Write one JSON object per line.",
        param="decontaminate.files",
    )


def sides_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the texts of an item's prompt and of its reference.

    The prompt is the user's turns; without those, the values of the ``PROMPTS`` keys; without those, every string
    except the reference. The reference is the values of the ``REFERENCES`` keys and the assistant's last turn.
    """
    inner = item.get("item")
    if isinstance(inner, dict):
        item = inner
    turns = item.get("messages") or item.get("turns")
    chat = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    prompt = [text for turn in chat if turn.get("role") == "user" for text in _strings(turn.get("content"))]
    reference = list(_strings(chat[-1].get("content"))) if chat and chat[-1].get("role") == "assistant" else []
    reference += [text for key in item if key in REFERENCES for text in _strings(item[key])]
    if not prompt:
        named = [key for key in item if key in PROMPTS] or [key for key in item if key not in REFERENCES]
        prompt = [text for key in named for text in _strings(item[key])]
    return "\n".join(prompt), "\n".join(reference)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
