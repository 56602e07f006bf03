"""Read a policy file: YAML, which includes JSON. Every error names the field's path and its line."""

from __future__ import annotations

from pathlib import Path

from shared.errors import Code, InvalidRequest
from shared.gates.policy import GatePolicy
from shared.hashing import digest_json
from shared.yaml_document import MAX_BYTES, read_document

__all__ = ["MAX_BYTES", "policy_digest", "read_policy", "read_policy_file"]


def read_policy(text: str) -> GatePolicy:
    """Parse a policy from its file's content.

    Raises:
        InvalidRequest: ``POLICY_INVALID``, with the path of the field as ``param`` and, in ``details``, its line.
    """
    return read_document(text, GatePolicy, "policy", _invalid)


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


def _invalid(message: str, param: str, line: int | None) -> InvalidRequest:
    where = f"line {line}: " if line else ""
    return InvalidRequest(
        Code.POLICY_INVALID,
        f"{where}{message}",
        remedy="docs/evaluation.md has every field; `mens policies check FILE` reads a file without storing it.",
        param=param or None,
        details={"line": line},
    )
