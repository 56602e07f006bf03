"""Templates of graders: strings with ``{{ item.path }}`` and ``{{ sample.path }}``. They are never executed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from shared.errors import Code, InvalidRequest

NAMESPACES = ("item", "sample")
_NO_SAMPLE: Mapping[str, Any] = MappingProxyType({})
_to_json = json.JSONEncoder(ensure_ascii=False).encode
# `dict` first: the check against an abstract class takes many times as long.
_OBJECTS = (dict, Mapping)
_STEP = re.compile(r"\.(?P<name>[^.\[\]{}]+)|\[(?P<index>\d{1,9})\]")

Path = tuple[str | int, ...]


def check_template(template: str) -> None:
    """Raise an error unless a template can be filled in.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: a placeholder is not closed, is not a path, or begins with another name.
    """
    for _ in pieces(template):
        pass


def render(template: str, item: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Fill in a template's placeholders. Values other than strings are inserted as JSON.

    Raises:
        InvalidRequest: ``GRADER_VARIABLE_INVALID``: a path leads nowhere. ``GRADER_SAMPLE_INVALID``:
            ``sample.output_json`` of an answer that is not JSON. And the errors of :func:`check_template`.
    """
    return Template(template).render(item, sample)


class Template:
    """A template that is parsed once and filled in many times.

    Raises:
        InvalidRequest: as :func:`check_template`.
    """

    def __init__(self, template: str) -> None:
        split = list(pieces(template))
        self._form = "".join(piece.replace("%", "%%") if isinstance(piece, str) else "%s" for piece in split)
        # Nearly all paths are `item.field`, whose value is there without a search.
        self._paths = [(path, _field(path)) for path in split if not isinstance(path, str)]

    def render(self, item: Mapping[str, Any], sample: Mapping[str, Any] = _NO_SAMPLE) -> str:
        """Fill in the placeholders as :func:`render` does."""
        texts = []
        for path, field in self._paths:
            value = item[field] if field is not None and field in item else value_at(path, item, sample)
            texts.append(value if isinstance(value, str) else _to_text(value))
        return self._form % tuple(texts)


def paths_of(template: str) -> list[Path]:
    """Return the paths of a template, in order, each beginning with ``item`` or ``sample``.

    Raises:
        InvalidRequest: as :func:`check_template`.
    """
    return [piece for piece in pieces(template) if not isinstance(piece, str)]


def parse_path(path: str) -> Path:
    """Parse a path from between braces.

    Raises:
        InvalidRequest: ``GRADER_INVALID``.
    """
    return _parse(path.strip())


def value_at(path: Path, item: Mapping[str, Any], sample: Mapping[str, Any]) -> Any:
    """Return the value at a path.

    Raises:
        InvalidRequest: ``GRADER_VARIABLE_INVALID``, ``GRADER_SAMPLE_INVALID``: the path leads nowhere.
    """
    value: Any = item if path[0] == "item" else sample
    for number, step in enumerate(path[1:], start=1):
        # Indexing a string would give a character, which is never meant.
        is_item = isinstance(step, int) and isinstance(value, list) and step < len(value)
        if not is_item and not (isinstance(step, str) and isinstance(value, _OBJECTS) and step in value):
            raise _missing(path, number)
        value = value[step]
    return value


def pieces(template: str) -> Iterator[str | Path]:
    """Split a template into literal strings and paths, in order."""
    end = 0
    while (begin := template.find("{{", end)) >= 0:
        # A search without a result ends the loop, because then no later placeholder is closed either.
        if (close := template.find("}}", begin + 2)) < 0:
            raise _invalid("A placeholder is not closed.")
        yield template[end:begin]
        yield _parse(template[begin + 2 : close].strip())
        end = close + 2
    yield template[end:]


def _parse(path: str) -> Path:
    namespace = re.match(r"\w*", path)
    assert namespace
    steps: list[str | int] = [namespace[0]]
    position = namespace.end()
    while position < len(path) and (step := _STEP.match(path, position)):
        steps.append(int(step["index"]) if step["index"] else step["name"].strip())
        position = step.end()
    if steps[0] not in NAMESPACES or position < len(path):
        raise _invalid(f"{{{{ {path[:80]} }}}} is not a path that begins with `item` or `sample`.")
    return tuple(steps)


def _field(path: Path) -> str | None:
    """Return the field of the item that a path leads to; None for other paths."""
    field = path[1] if len(path) == 2 and path[0] == "item" else None
    return field if isinstance(field, str) else None


def _to_text(value: Any) -> str:
    # The encoder gives the same for a number, in many times the time.
    return str(value) if type(value) is int else _to_json(value)


def _missing(path: Path, number: int) -> InvalidRequest:
    if path[:2] == ("sample", "output_json") and number == 1:
        return InvalidRequest(
            Code.GRADER_SAMPLE_INVALID,
            "The answer is not valid JSON, so `sample.output_json` is unavailable.",
            param="sample",
        )
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[: number + 1]).lstrip(".")
    remedy = "Name a field that the item or the answer has."
    return InvalidRequest(
        Code.GRADER_VARIABLE_INVALID, f"The field {written[:200]} does not exist.", remedy=remedy, param=written[:200]
    )


def _invalid(message: str) -> InvalidRequest:
    remedy = "Placeholders are {{ item.field }} and {{ sample.output_text }}, with dots and [0] for nested values."
    return InvalidRequest(Code.GRADER_INVALID, message, remedy=remedy)
