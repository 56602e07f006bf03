"""Multipart uploads: written to storage and hashed as they arrive, in whatever order a client sends the parts.

Python's OpenAI client sends ``purpose`` first, Node's sends the file first; neither the file nor a part of it larger
than one chunk is ever held in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from streaming_form_data import ParseFailedException, StreamingFormDataParser
from streaming_form_data.targets import BaseTarget, ValueTarget
from streaming_form_data.validators import MaxSizeValidator, ValidationError

from shared.artifacts.storage import BlobWriter, Storage
from shared.errors import Code, DatasetInvalid, InvalidRequest, TooLarge

CHUNK_BYTES = 1 << 20
MAX_FIELD_BYTES = 4096
MULTIPART_OVERHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Upload:
    """A received file, already in storage.

    Attributes:
        fields: the other form fields as text.
    """

    filename: str
    size: int
    sha256: str
    fields: dict[str, str]


class _BlobTarget(BaseTarget):  # type: ignore[misc]  # the library is untyped
    def __init__(self, writer: BlobWriter, limit: int) -> None:
        super().__init__()
        self._writer = writer
        self._limit = limit

    def on_data_received(self, chunk: bytes) -> None:
        self._writer.write(chunk)
        if self._writer.size > self._limit:
            raise file_too_large(self._limit)


async def receive_upload(
    body: AsyncIterator[bytes], headers: dict[str, str], storage: Storage, limit: int, field_names: tuple[str, ...]
) -> Upload:
    """Read a multipart body into storage.

    Args:
        body: the request's stream.
        headers: the request's headers; the content type holds the boundary.
        storage: receives the file.
        limit: largest file in bytes.
        field_names: form fields to keep; others are ignored.

    Raises:
        TooLarge: ``FILE_TOO_LARGE``. InvalidRequest: ``REQUEST_INVALID``: no multipart body, or no file in it.
    """
    with storage.writer() as writer:
        target = _BlobTarget(writer, limit)
        fields = {name: ValueTarget(MaxSizeValidator(MAX_FIELD_BYTES)) for name in field_names}
        await _parse(body, headers, target, fields)
        if target.multipart_filename is None:
            raise _invalid("The form has no part named `file` with a file name.", "file")
        if writer.size == 0:
            raise DatasetInvalid(
                Code.DATASET_EMPTY, "The file is empty.", remedy="Upload a file with one row a line.", param="file"
            )
        sha256 = await run_in_threadpool(writer.commit)
    values = {name: field.value.decode(errors="replace") for name, field in fields.items() if field.value}
    # The last part of the client's path. It is shown to people, and never used as a path.
    filename = target.multipart_filename.replace("\\", "/").rsplit("/", 1)[-1][:255] or "file.jsonl"
    return Upload(filename, writer.size, sha256, values)


def file_too_large(limit: int) -> TooLarge:
    """The error for a file over the limit."""
    return TooLarge(
        Code.FILE_TOO_LARGE,
        f"The file is larger than {limit} bytes.",
        remedy="Split it, or raise MENS_MAX_FILE_BYTES.",
        param="file",
    )


async def _parse(
    body: AsyncIterator[bytes], headers: dict[str, str], target: BaseTarget, fields: dict[str, ValueTarget]
) -> None:
    """Feed a parser about a MiB at a time, in a thread, because its target hashes and writes to disk."""
    try:
        parser = StreamingFormDataParser(headers=headers)
    except (ParseFailedException, KeyError, ValueError) as error:
        raise _invalid("The body is not multipart/form-data with a boundary.", None) from error
    parser.register("file", target)
    for name, field in fields.items():
        parser.register(name, field)
    pending = bytearray()
    try:
        async for chunk in body:
            pending += chunk
            if len(pending) >= CHUNK_BYTES:
                await run_in_threadpool(parser.data_received, bytes(pending))
                pending.clear()
        await run_in_threadpool(parser.data_received, bytes(pending))
    except UnicodeDecodeError as error:
        raise _invalid("A name in the multipart body is not UTF-8.", "file") from error
    except ParseFailedException as error:
        raise _invalid("The multipart body is broken.", None) from error
    except ValidationError as error:
        raise _invalid(f"A form field is longer than {MAX_FIELD_BYTES} bytes.", None) from error


def _invalid(message: str, param: str | None) -> InvalidRequest:
    remedy = "Send multipart/form-data with the parts `purpose` and `file`."
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param=param)
