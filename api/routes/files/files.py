"""OpenAI's files API: /v1/files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from api.openai.fine_tuning import file_view
from api.openai.types import Deleted, FileObject
from api.openai.uploads import LONGEST_SECONDS, PURPOSES, SHORTEST_SECONDS, check_purpose
from api.services import ServicesDep
from api.web.auth import TRAINER, CallerDep
from api.web.multipart import file_too_large, receive_file
from api.web.params import After, Id, IdempotencyKey, IdPage, id_page_fields
from api.web.tenant_rates import UPLOAD_LIMIT
from api.web.tenant_view import TenantViewDep
from shared.database.files.contents import IdempotencyKey as UsedKey
from shared.database.files.contents import over_quota
from shared.database.files.files import File
from shared.errors import Code, InvalidRequest, MensError
from shared.hashing import digest_json

router = APIRouter(prefix="/v1/files", tags=["files (OpenAI)"])

FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
UPLOAD_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "file": {"type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}


class FilePage(IdPage[FileObject]):
    """One page of files, with the ids of its first and last."""


@router.post("", openapi_extra=UPLOAD_SCHEMA, dependencies=[*TRAINER, UPLOAD_LIMIT])
async def create_file(
    request: Request,
    services: ServicesDep,
    view: TenantViewDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> FileObject:
    """Upload a JSONL file. It is streamed to storage and hashed; its rows are checked when a job uses it."""
    quota, limit = services.settings.file_quota, services.settings.max_file_bytes
    too_large: MensError = file_too_large(limit)
    # A repeated upload is already counted in the quota.
    if idempotency_key is None or not await run_in_threadpool(view.files.made_with, idempotency_key):
        room = await run_in_threadpool(view.files.room, quota)
        if room is not None and room < limit:
            limit, too_large = room, over_quota(caller.tenant, f"{quota.bytes} bytes")
    with services.storage.writer() as writer:
        received = await receive_file(request, writer, limit, too_large, fields=FIELDS)
        purpose, seconds = check_purpose(received.fields.get("purpose", "")), _file_seconds(received.fields)
        sent = {"filename": received.filename, "purpose": purpose, "sha256": received.sha256, "seconds": seconds}
        add = partial(
            view.files.add,
            received.filename,
            purpose,
            received.size,
            received.sha256,
            None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
            quota,
            store=writer.commit,
            idempotency_key=UsedKey(idempotency_key, digest_json(sent)) if idempotency_key else None,
        )
        return file_view(await run_in_threadpool(add))


@router.get("")
def list_files(
    view: TenantViewDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(pattern=r"^[^\x00]*$")] = None,
) -> FilePage:
    """Uploaded files, newest first by default."""
    files = view.files.list(after=after, limit=limit, purpose=purpose, newest_first=order == "desc")
    return FilePage(**id_page_fields([file_view(file) for file in files[:limit]], has_more=len(files) > limit))


@router.get("/{file_id}")
def retrieve_file(file_id: Id, view: TenantViewDep) -> FileObject:
    """One file's record."""
    return file_view(view.files.get(file_id))


def _local_content(file_id: Id, services: ServicesDep, view: TenantViewDep) -> Iterator[tuple[File, Path]]:
    """Yield a file and its bytes on this machine. A dependency, because the path must be valid until the response is
    sent.
    """
    file = view.files.get(file_id)
    with services.storage.local_file(file.sha256) as path:
        yield file, path


@router.get("/{file_id}/content", response_class=FileResponse)
def file_content(content: Annotated[tuple[File, Path], Depends(_local_content)]) -> FileResponse:
    """A file's content."""
    file, path = content
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


@router.delete("/{file_id}", dependencies=TRAINER)
def delete_file(file_id: Id, services: ServicesDep, view: TenantViewDep) -> Deleted:
    """Delete a file. Refused while an unfinished job needs it."""
    view.files.delete(file_id, services.storage.delete_blob)
    return Deleted(id=file_id, object="file")


def _file_seconds(fields: Mapping[str, str]) -> int | None:
    """Return the file's lifetime from the form's fields."""
    seconds, anchor = fields.get("expires_after[seconds]"), fields.get("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"expires_after.anchor is {anchor[:80]!r}; a file's lifetime begins at created_at.",
            param="expires_after.anchor",
        )
    if seconds is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", seconds) or not SHORTEST_SECONDS <= int(seconds) <= LONGEST_SECONDS:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"expires_after.seconds is {seconds[:80]!r}; it must be {SHORTEST_SECONDS} to {LONGEST_SECONDS}.",
            param="expires_after.seconds",
        )
    return int(seconds)
