"""Multipart bodies with a file: written to storage and hashed as they arrive, in any order of the parts.

Python's OpenAI client sends ``purpose`` first, Node's sends the file first; at most one chunk of the file is held in
memory at a time.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from shared.artifacts.storage import BlobWriter
from shared.errors import Code, DatasetInvalid, InvalidRequest, MensError, TooLarge


@contextmanager
def without_smart_open() -> Iterator[None]:
    """Import inside the block without smart_open, which imports three cloud clients: a quarter of a second of each
    start.

    The parser's package refers to it in targets that write into clouds; none of them is used here.
    """
    is_ours = "smart_open" not in sys.modules
    if is_ours:
        sys.modules["smart_open"] = ModuleType("smart_open")
    try:
        yield
    finally:
        if is_ours:
            del sys.modules["smart_open"]


with without_smart_open():
    from streaming_form_data import ParseFailedException, StreamingFormDataParser
    from streaming_form_data.targets import BaseTarget, ValueTarget
    from streaming_form_data.validators import MaxSizeValidator, ValidationError

CHUNK_BYTES = 1 << 20
MAX_FIELD_BYTES = 4096
# Content-Length also counts boundaries, headers and the other fields, which are not part of the file.
MULTIPART_OVERHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received file, whose bytes are in a writer.

    Attributes:
        filename: the last part of the client's path. It is only displayed, and never used as a path.
        fields: the other form fields as strings.
    """

    filename: str
    size: int
    sha256: str
    fields: dict[str, str]


class _BlobTarget(BaseTarget):
    def __init__(self, writer: BlobWriter, limit: int, too_large: MensError) -> None:
        super().__init__()
        self._writer = writer
        self._limit = limit
        self._too_large = too_large

    def on_data_received(self, chunk: bytes) -> None:
        self._writer.write(chunk)
        if self._writer.size > self._limit:
            raise self._too_large


async def receive_file(
    request: Request, writer: BlobWriter, limit: int, too_large: MensError, *, name: str = "file", fields: Sequence[str]
) -> ReceivedFile:
    """Read a multipart body with a file into a writer, which is then finished and not committed.

    Args:
        request: the request to read.
        writer: receives the file.
        limit: largest file in bytes.
        too_large: the error for a larger one.
        name: name of the form's field that contains the file.
        fields: form fields to keep; others are ignored.

    Raises:
        MensError: ``too_large``.
        InvalidRequest: ``REQUEST_INVALID``: not a multipart body, or no file in it.
        DatasetInvalid: ``DATASET_EMPTY``.
    """
    target = _BlobTarget(writer, limit, too_large)
    texts = {field: ValueTarget(MaxSizeValidator(MAX_FIELD_BYTES)) for field in fields}
    await _parse(request.stream(), dict(request.headers), {name: target, **texts})
    if target.multipart_filename is None:
        raise _invalid(f"The form has no part named `{name}` that has a file name.", name)
    if writer.size == 0:
        raise DatasetInvalid(
            Code.DATASET_EMPTY, "The file is empty.", remedy="Upload a file with one row per line.", param=name
        )
    sha256 = await run_in_threadpool(writer.finish)
    values = {field: text.value.decode(errors="replace") for field, text in texts.items() if text.value}
    return ReceivedFile(plain_name(target.multipart_filename), writer.size, sha256, values)


def plain_name(path: str) -> str:
    """Return the last part of a client's path, cut to the longest allowed name."""
    return path.replace("\\", "/").rsplit("/", 1)[-1][:255] or "file.jsonl"


def file_too_large(limit: int) -> TooLarge:
    """Return the error for a file over the limit."""
    remedy = "Upload it in parts (POST /v1/uploads), split it, or raise MENS_MAX_FILE_BYTES."
    return TooLarge(Code.FILE_TOO_LARGE, f"The file is larger than {limit} bytes.", remedy=remedy, param="file")


def part_too_large(limit: int) -> TooLarge:
    """Return the error for a part of an upload over the limit."""
    remedy = "Send more and smaller parts, or raise MENS_MAX_PART_BYTES."
    return TooLarge(Code.FILE_TOO_LARGE, f"The part is larger than {limit} bytes.", remedy=remedy, param="data")


async def _parse(body: AsyncIterator[bytes], headers: dict[str, str], targets: dict[str, BaseTarget]) -> None:
    """Feed a parser about a MiB at a time, in a thread, because a target hashes and writes to disk."""
    try:
        parser = StreamingFormDataParser(headers=headers)
    except (ParseFailedException, KeyError, ValueError) as error:
        raise _invalid("The body is not multipart/form-data with a boundary.", None) from error
    for name, target in targets.items():
        parser.register(name, target)
    pending = bytearray()
    try:
        async for chunk in body:
            pending += chunk
            if len(pending) >= CHUNK_BYTES:
                await run_in_threadpool(parser.data_received, bytes(pending))
                pending.clear()
        await run_in_threadpool(parser.data_received, bytes(pending))
    except UnicodeDecodeError as error:
        raise _invalid("A name in the multipart body is not UTF-8.", next(iter(targets))) from error
    except ParseFailedException as error:
        raise _invalid("The multipart body is broken.", None) from error
    except ValidationError as error:
        raise _invalid(f"A form field is longer than {MAX_FIELD_BYTES} bytes.", None) from error


def _invalid(message: str, param: str | None) -> InvalidRequest:
    remedy = "Send multipart/form-data with the parts that GET /v1/openapi.json describes."
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param=param)
