"""Read a policy file: YAML, which includes JSON. Every error names the field's path and its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from shared.errors import Code, InvalidRequest
from shared.gates.policy import GatePolicy
from shared.hashing import digest_json

MAX_BYTES = 64 << 10
MAX_DEPTH = 16


def read_policy(text: str) -> GatePolicy:
    """Parse a policy from its file's content.

    Raises:
        InvalidRequest: ``POLICY_INVALID``, with the path of the field as ``param`` and, in ``details``, its line.
    """
    if len(text.encode()) > MAX_BYTES:
        raise _invalid(f"The policy has more than {MAX_BYTES} bytes.", "", None)
    try:
        tree = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _invalid(
            f"It is not YAML: {error.problem or error.context}.", "", mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(f"It is not YAML: {str(error).splitlines()[0]}.", "", None) from None
    if not isinstance(tree, yaml.MappingNode):
        raise _invalid("A policy is a mapping with `version` and `gates`.", "", 1)
    lines: dict[tuple[str, ...], int] = {}
    fields = _plain(tree, (), lines)
    try:
        return GatePolicy.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = tuple(str(part) for part in fault["loc"])
        if fault["type"] == "run_unknown":
            path = ("gates", *str(fault["ctx"]["gate"]).split("."), "run")
        # A missing field has no line of its own, and a union's branch no key: use the nearest path that is in the file.
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in lines), ())
        where = ".".join(path[: len(known) + 1] if fault["type"] == "missing" else known or path[:1])
        named = f"{where}: " if where else ""
        raise _invalid(f"{named}{_reason(fault)}.", where, lines.get(known, 1)) from None


def read_policy_file(path: Path) -> str:
    """Read the file that a setting names.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"MENS_GATE_POLICY: {path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.",
            remedy="Name a policy file, or unset it.",
            param="MENS_GATE_POLICY",
        ) from None


def policy_digest(policy: GatePolicy) -> str:
    """Return SHA-256 of a policy's requirements, defaults filled in: equal requirements have the same digest."""
    return digest_json(policy.model_dump(mode="json"))


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


def _plain(node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> Any:
    """Return a node's value; ``lines`` gets the line of every path."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in fields:
                raise _invalid(f"{name!r} occurs twice.", ".".join((*path, name)), key.start_mark.line + 1)
            lines[(*path, name)] = key.start_mark.line + 1
            fields[name] = _plain(value, (*path, name), lines)
        return fields
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, str(index)), lines) for index, item in enumerate(node.value)]
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(f"{str(error).splitlines()[0]}.", ".".join(path), line) from None


def _reason(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "this field does not exist"
    if fault["type"] == "missing":
        return "it is required"
    return str(fault["msg"]).removeprefix("Value error, ")


def _invalid(message: str, param: str, line: int | None) -> InvalidRequest:
    where = f"line {line}: " if line else ""
    return InvalidRequest(
        Code.POLICY_INVALID,
        f"{where}{message}",
        remedy="docs/evaluation.md has every field; `mens policies check FILE` reads a file without storing it.",
        param=param or None,
        details={"line": line},
    )
