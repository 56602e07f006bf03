"""YAML (and so JSON) documents that people write: plain values and their lines, so that every error names field and line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

MAX_BYTES = 64 << 10
# The composer is recursive.
MAX_DEPTH = 16
Invalid = Callable[[str, str, int | None], Exception]
"""Makes the error of a document: message, the field's path, the line."""
Model = TypeVar("Model", bound=BaseModel)


def read_document(text: str, model: type[Model], noun: str, invalid: Invalid) -> Model:
    """Parse a mapping and validate it.

    Args:
        noun: the document's noun, for messages: ``policy``.

    Raises:
        Exception: the one that ``invalid`` makes, for the first fault.
    """
    fields, lines = parse_mapping(text, noun, invalid)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        where, line, reason = _described(faults[0], lines)
        if _is_kind(faults[0]):
            # A value that may be of several kinds has a fault for each kind.
            others = [_described(fault, lines) for fault in faults[1:] if _is_kind(fault)]
            kinds = [kind.removeprefix(_HAS_TO_BE) for place, _, kind in others if place == where]
            reason = " or ".join(dict.fromkeys([reason, *kinds]))
        named = f"{where}: " if where else ""
        raise invalid(f"{named}{reason}.", where, line) from None


def _described(fault: Any, lines: Mapping[tuple[str, ...], int]) -> tuple[str, int, str]:
    """Return the field of a fault, its line, and the reason."""
    path = tuple(str(part) for part in fault["loc"])
    if fault["type"] == "run_unknown":
        path = ("gates", *str(fault["ctx"]["gate"]).split("."), "run")
    # The branches of a union are in the path and not in the file; a missing field has no line of its own.
    prefix: tuple[str, ...] = ()
    for part in path:
        prefix = (*prefix, part) if (*prefix, part) in lines else prefix
    where = ".".join((*prefix, path[-1]) if fault["type"] == "missing" else prefix or path[:1])
    return where, lines.get(prefix, 1), _reason(fault)


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


def _is_kind(fault: Any) -> bool:
    return fault["type"] in _KINDS


_HAS_TO_BE = "it has to be "
_KINDS = {
    "dict_type": "a mapping of names to values", "model_type": "a mapping of names to values",
    "model_attributes_type": "a mapping of names to values", "list_type": "a list, such as [a, b]", "string_type": "text",
    "float_type": "a number", "float_parsing": "a number", "int_type": "a whole number", "int_parsing": "a whole number",
    "int_from_float": "a whole number", "bool_type": "true or false", "bool_parsing": "true or false",
    "date_from_datetime_parsing": "a day, such as 2026-11-27", "date_type": "a day, such as 2026-11-27",
}  # fmt: skip
"""Kind of value that is needed, by the type of pydantic's error."""


def _reason(fault: Any) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return "this field does not exist"
    if kind == "missing":
        return "it is required"
    if kind == "union_tag_not_found":
        return f"it has no {fault['ctx']['discriminator'].strip(chr(39))}, which decides its type"
    if kind == "union_tag_invalid":
        tags, tag = fault["ctx"]["expected_tags"].replace("'", ""), fault["ctx"]["tag"]
        return f"it has to be one of {tags}" + (f", and not {tag!r}" if tag != "None" else "")
    if kind in _KINDS:
        return f"{_HAS_TO_BE}{_KINDS[kind]}"
    reason = str(fault["msg"]).removeprefix("Value error, ")
    return reason.replace("Input should be ", _HAS_TO_BE).replace("String should ", "it has to ")
