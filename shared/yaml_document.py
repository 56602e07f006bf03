"""YAML (and so JSON) documents that people write: plain values and their lines, so that every error names field and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

MAX_BYTES = 64 << 10
MAX_DEPTH = 16
Invalid = Callable[[str, str, int | None], Exception]
"""Makes the error of a document: message, the field's path, the line."""
Model = TypeVar("Model", bound=BaseModel)


def read_document(text: str, model: type[Model], noun: str, invalid: Invalid) -> Model:
    """Parse a mapping and validate it.

    Args:
        noun: of the document, for messages: ``policy``.

    Raises:
        Exception: the one that ``invalid`` makes, for the first fault.
    """
    fields, lines = parse_mapping(text, noun, invalid)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = tuple(str(part) for part in fault["loc"])
        if fault["type"] == "run_unknown":
            path = ("gates", *str(fault["ctx"]["gate"]).split("."), "run")
        # A missing field has no line of its own, and a union's tag is not a key: use the nearest path that is in the file.
        known: tuple[str, ...] = ()
        for part in path:
            known = (*known, part) if (*known, part) in lines else known
        where = ".".join((*known, path[-1]) if fault["type"] == "missing" else known or path[:1])
        named = f"{where}: " if where else ""
        raise invalid(f"{named}{_reason(fault)}.", where, lines.get(known, 1)) from None


def parse_mapping(text: str, noun: str, invalid: Invalid) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """Return a document's values, and the line of every path in it. It has no references and is not deep.

    Raises:
        Exception: the one that ``invalid`` makes.
    """
    if len(text.encode()) > MAX_BYTES:
        raise invalid(f"The {noun} has more than {MAX_BYTES} bytes.", "", None)
    try:
        tree = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise invalid(
            f"It is not YAML: {error.problem or error.context}.", "", mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise invalid(f"It is not YAML: {str(error).splitlines()[0]}.", "", None) from None
    if not isinstance(tree, yaml.MappingNode):
        raise invalid(f"A {noun} is a mapping of names to values.", "", 1)
    lines: dict[tuple[str, ...], int] = {}
    return _plain(tree, (), lines, invalid), lines


class _Loader(yaml.SafeLoader):
    """YAML without references, which can make a short file endless, and without deep nesting, which is slow."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors and references are not allowed", event.start_mark)
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "it is nested too deeply", event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _plain(node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int], invalid: Invalid) -> Any:
    """Return a node's value; ``lines`` gets the line of every path."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in fields:
                raise invalid(f"{name!r} occurs twice.", ".".join((*path, name)), key.start_mark.line + 1)
            lines[(*path, name)] = key.start_mark.line + 1
            fields[name] = _plain(value, (*path, name), lines, invalid)
        return fields
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, str(index)), lines, invalid) for index, item in enumerate(node.value)]
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise invalid(f"{str(error).splitlines()[0]}.", ".".join(path), line) from None


def _reason(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "this field does not exist"
    if fault["type"] == "missing":
        return "it is required"
    return str(fault["msg"]).removeprefix("Value error, ")
