"""OpenAI's shapes of uploads in parts, and its requirements for every uploaded file: its purpose and its lifetime."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictInt, StringConstraints

from api.openai.fine_tuning import file_view
from api.openai.types import ClosedObject, FileObject
from shared.database.files.files import File
from shared.database.files.uploads import MAX_PARTS, Upload, UploadPart, UploadStatus
from shared.errors import Code, InvalidRequest

PURPOSES = ("fine-tune", "evals")
SHORTEST_SECONDS, LONGEST_SECONDS = 3600, 2_592_000
"""Shortest and longest lifetime of a file that expires: an hour to 30 days."""


class ExpiresAfter(ClosedObject):
    """Time at which a file is to be deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[StrictInt, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]


class CreateUpload(ClosedObject):
    """Request for an upload in parts (POST /v1/uploads)."""

    bytes: Annotated[StrictInt, Field(ge=1, le=2**62)]
    filename: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    mime_type: Annotated[str, StringConstraints(max_length=255)] = Field(
        description="Accepted but not used: rows are checked when a job names the file."
    )
    purpose: str
    expires_after: ExpiresAfter | None = None


class CompleteUpload(ClosedObject):
    """Request that makes an upload's parts, in this order, a file."""

    part_ids: Annotated[
        list[Annotated[str, StringConstraints(max_length=64)]], Field(min_length=1, max_length=MAX_PARTS)
    ]
    md5: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")] | None = Field(
        None, description="MD5 of the whole file, as hexadecimal digits."
    )


class UploadObject(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: UploadStatus
    file: FileObject | None = None
    mens: dict[str, Any] | None = Field(None, description="Parts of the requested upload.")


class UploadPartObject(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


def check_purpose(purpose: str) -> str:
    """Return the purpose if it is accepted.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: not an accepted purpose.
    """
    if purpose in PURPOSES:
        return purpose
    raise InvalidRequest(
        Code.REQUEST_INVALID,
        f"The purpose is {purpose[:80]!r}; allowed purposes are: {', '.join(PURPOSES)}.",
        remedy='Send purpose="fine-tune", or "evals" for the items of an eval.',
        param="purpose",
    )


def upload_view(upload: Upload, file: File | None = None) -> UploadObject:
    """Return an upload in OpenAI's shape."""
    return UploadObject(
        id=upload.id,
        bytes=upload.bytes,
        created_at=int(upload.created_at.timestamp()),
        expires_at=int(upload.expires_at.timestamp()),
        filename=upload.filename,
        purpose=upload.purpose,
        status=upload.status,
        file=file_view(file) if file else None,
    )


def part_view(part: UploadPart) -> UploadPartObject:
    """Return a part in OpenAI's shape."""
    return UploadPartObject(id=part.id, created_at=int(part.created_at.timestamp()), upload_id=part.upload_id)
