"""The lines of ``golden/PROJECT/MODEL.jsonl``: recorded prompts with their answers, verified before use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from shared.errors import ArtifactInvalid, Code


class _Request(msgspec.Struct):
    """Fields that every request of a recorded prompt has; other fields are not checked."""

    messages: list[dict[str, Any]]


class GoldenAnswer(msgspec.Struct, frozen=True):
    """One answer of a line; ``file`` is the path of its unchanged body, with its SHA-256."""

    model: str
    sample: int
    response: dict[str, Any]
    file: str
    sha256: str
    sampling: dict[str, Any] | None = None


class GoldenLine(msgspec.Struct, frozen=True):
    """A line of ``golden/PROJECT/MODEL.jsonl``."""

    id: str
    source: str
    request: dict[str, Any]
    model: str
    answers: list[GoldenAnswer]


def decode_line(path: Path, number: int, line: bytes) -> GoldenLine:
    """Decode a line of a file of recorded answers.

    Raises:
        ArtifactInvalid: it is not such a line.
    """
    try:
        value = msgspec.json.decode(line, type=GoldenLine)
        msgspec.convert(value.request, _Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(f"{path}, line {number}, is not a recorded prompt: {error}.") from None
    return value


def check_kept(folder: Path, place: str, answer: GoldenAnswer) -> None:
    """Check that an answer equals the body that was stored when it arrived, so that neither was changed later.

    Raises:
        ArtifactInvalid: they differ.
    """
    file = folder / answer.file
    content = file.read_bytes() if file.resolve().is_relative_to(folder.resolve()) and file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != answer.sha256 or msgspec.json.decode(content) != answer.response:
        raise _unreadable(
            f"{place}: the answer of {answer.model} differs from the one that was recorded in {answer.file}."
        )


def _unreadable(message: str) -> ArtifactInvalid:
    remedy = (
        "Delete the line, or the file, and run `mens migrate openai record` (or `import`) again; or use a copy of "
        "the archive."
    )
    return ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy=remedy)
