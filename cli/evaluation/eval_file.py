"""Input of ``mens eval run``: a file of rows, or an eval file with graders next to its rows. Pure except for reading
files.

An eval file is YAML or JSON: ``testing_criteria`` (OpenAI's graders), ``items`` or ``data`` (a JSONL file next to it),
and optionally ``name``, ``input_messages`` and ``sampling_params``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from pydantic import TypeAdapter, ValidationError

from shared.datasets.rows import Record
from shared.errors import Code, InvalidRequest
from shared.evaluation.types import ChatSampling, Criterion, InputMessages

Item = dict[str, Any]
CRITERIA: TypeAdapter[list[Criterion]] = TypeAdapter(list[Criterion])
INPUT: TypeAdapter[InputMessages] = TypeAdapter(InputMessages)
MESSAGES: dict[str, Any] = {"type": "item_reference", "item_reference": "item.messages"}
"""Each item has its own messages: the default."""
KEYS = ("name", "testing_criteria", "items", "data", "input_messages", "sampling_params")
SHOWN_KEYS = 8
TEXTS = ("prompt", "instruction", "input", "context", "response", "output", "completion")
"""Fields of a training row without turns."""


@dataclass(frozen=True)
class EvalFile:
    """An eval with the rows of its run.

    Attributes:
        name: name in lists.
        items: each is ``item`` in templates.
        criteria: OpenAI's graders, in the form that is sent.
        input_messages: how an item becomes messages.
        sampling: how a model is sampled.
    """

    name: str
    items: Sequence[Item]
    criteria: Sequence[dict[str, Any]] = ()
    input_messages: Mapping[str, Any] = field(default_factory=lambda: dict(MESSAGES))
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def item_schema(self) -> dict[str, Any]:
        """Return a JSON Schema with the keys of the items; keys that all items have are required."""
        keys = list(dict.fromkeys(key for item in self.items for key in item))
        required = [key for key in keys if all(key in item for item in self.items)]
        return {"type": "object", "properties": {key: {} for key in keys}, "required": required}


def read(path: Path) -> EvalFile:
    """Read an eval file (``.yaml``, ``.yml``, ``.json``), or, under any other name, a file of rows.

    Raises:
        InvalidRequest: ``EVAL_ITEMS_INVALID``, ``EVAL_INVALID``: with the line or the field.
    """
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return EvalFile(path.stem, read_rows(path))
    document = _read_document(path)
    if unknown := [key for key in document if key not in KEYS]:
        raise _invalid(f"{path} has the unknown key {unknown[0]!r}; an eval file has {', '.join(KEYS)}.", unknown[0])
    try:
        criteria = CRITERIA.validate_python(document.get("testing_criteria") or [])
        messages = INPUT.validate_python(document.get("input_messages") or MESSAGES)
        sampling = ChatSampling.model_validate(document.get("sampling_params") or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _invalid(f"{path}: {where}: {first['msg']}.", where) from None
    return EvalFile(
        name=str(document.get("name") or path.stem),
        items=_items(path, document),
        criteria=[criterion.model_dump(mode="json", exclude_none=True) for criterion in criteria],
        input_messages=messages.model_dump(mode="json"),
        sampling=sampling.model_dump(mode="json", exclude_none=True),
    )


def _read_document(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that contains an object.

    Raises:
        InvalidRequest: ``EVAL_INVALID``.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _invalid(f"{path} is neither valid YAML nor JSON: {error}.") from error
    if not isinstance(document, dict):
        raise _invalid(f"{path} does not contain an object.")
    return document


def _items(path: Path, document: Mapping[str, Any]) -> list[Item]:
    items, data = document.get("items"), document.get("data")
    if (items is None) == (data is None):
        raise _invalid(f"{path} needs either `items` or `data`, the name of a JSONL file in the same folder.", "items")
    if data is not None:
        return read_rows(path.parent / str(data))
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise _invalid(f"{path}: `items` is not a list of objects.", "items")
    return [to_item(item) for item in items]


def read_rows(path: Path) -> list[Item]:
    """Read the items of a JSONL file.

    Raises:
        InvalidRequest: ``EVAL_ITEMS_INVALID``: with the line.
    """
    items = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_items(f"{path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _bad_items(f"{path}, line {number} is not valid JSON: {error}.") from error
        if not isinstance(row, dict):
            raise _bad_items(f"{path}, line {number} is not an object.")
        items.append(to_item(row))
    if not items:
        raise _bad_items(f"{path} has no rows.")
    return items


def to_item(row: Mapping[str, Any]) -> Item:
    """Convert a row to an item.

    OpenAI's ``{"item": …}`` is unwrapped. A training row, a chat or a prompt with its answer, gets ``messages``, the turns before its
    last answer, and that answer as ``expected``, unless it is rated bad. Other keys stay as they are.
    """
    if isinstance(row.get("item"), dict) and row.keys() <= {"item", "sample"}:
        return dict(row["item"])
    item = dict(row)
    turns = next((item[key] for key in ("messages", "turns") if _is_chat(item.get(key))), None) or _written_turns(item)
    if not turns:
        return item
    if isinstance(item.get("system"), str) and turns[0].get("role") not in ("system", "developer"):
        turns = [{"role": "system", "content": item["system"]}, *turns]
    answered = len(turns) > 1 and turns[-1].get("role") == "assistant" and "expected" not in item
    if not answered:
        return item | {"messages": turns}
    *before, last = turns
    return item | {"messages": before} | ({} if item.get("label") is False else {"expected": last.get("content")})


def _is_chat(value: Any) -> bool:
    turns = value if isinstance(value, list) else []
    return bool(turns) and all(isinstance(turn, dict) and isinstance(turn.get("role"), str) for turn in turns)


def _written_turns(item: Item) -> list[dict[str, Any]]:
    """Return the turns of a row that has its prompt, and its answer if any, in separate fields."""
    texts = {key: item[key] for key in TEXTS if isinstance(item.get(key), str)}
    prompt, answer = msgspec.convert(texts, Record).pair()
    turns = [("user", prompt), ("assistant", answer)]
    return [{"role": role, "content": text} for role, text in turns if text is not None] if prompt else []


def _invalid(message: str, param: str | None = None) -> InvalidRequest:
    remedy = "Correct it; `mens eval run --help` shows the format."
    return InvalidRequest(Code.EVAL_INVALID, message, remedy=remedy, param=param)


def _bad_items(message: str) -> InvalidRequest:
    return InvalidRequest(Code.EVAL_ITEMS_INVALID, message, remedy="Write one JSON object per line.", param="items")
