"""OpenAI's files API: /v1/files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from api.openai.fine_tuning import file_view
from api.openai.types import Deleted, FileObject
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, CallerDep
from api.web.params import After, Id, Page
from api.web.tenant_rates import UPLOAD_LIMIT
from api.web.tenant_view import TenantView, TenantViewDep
from api.web.uploads import Upload, receive_upload
from shared.database.files import File, over_quota
from shared.errors import Code, InvalidRequest, TooLarge, Unavailable

router = APIRouter(prefix="/v1/files", tags=["files (OpenAI)"])

PURPOSES = ("fine-tune",)
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


class FilePage(Page[FileObject]):
    """One page of files, with the ids of its first and last."""

    first_id: str | None
    last_id: str | None


@router.post("", openapi_extra=UPLOAD_SCHEMA, dependencies=[*TRAINER, UPLOAD_LIMIT])
async def create_file(request: Request, services: ServicesDep, view: TenantViewDep, caller: CallerDep) -> FileObject:
    """Upload a JSONL file. It is streamed to storage and hashed; its rows are checked when a job uses it."""
    largest, quota = services.settings.max_file_bytes, services.settings.file_quota
    room = await run_in_threadpool(view.files.room, quota)
    limit = largest if room is None else min(largest, room)
    try:
        upload = await receive_upload(request.stream(), dict(request.headers), services.storage, limit, FIELDS)
    except TooLarge:
        if limit < largest:
            raise over_quota(caller.tenant, f"{quota.bytes} bytes") from None
        raise
    purpose, expires_at = _purpose_and_expiry(upload)
    file = await run_in_threadpool(
        view.files.add, upload.filename, purpose, upload.size, upload.sha256, expires_at, quota
    )
    await run_in_threadpool(_refuse_lost, view, services, file)
    return file_view(file)


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
    page = [file_view(file) for file in files[:limit]]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return FilePage(data=page, has_more=len(files) > limit, first_id=first, last_id=last)


@router.get("/{file_id}")
def retrieve_file(file_id: Id, view: TenantViewDep) -> FileObject:
    """One file's record."""
    return file_view(view.files.get(file_id))


def _local_content(file_id: Id, services: ServicesDep, view: TenantViewDep) -> Iterator[tuple[File, Path]]:
    """A file and its bytes on this machine. A dependency, because the path must hold until the response is sent."""
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


def _refuse_lost(view: TenantView, services: Services, file: File) -> None:
    """The same content's last file may have been deleted, blob and all, between the upload and its record."""
    if services.storage.has_blob(file.sha256):
        return
    view.files.delete(file.id)
    raise Unavailable(
        Code.STORAGE_OBJECT_MISSING,
        "A file with the same content was deleted while this one was stored.",
        remedy="Upload it again.",
        param="file",
    )


def _purpose_and_expiry(upload: Upload) -> tuple[str, datetime | None]:
    purpose = upload.fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"The purpose is {purpose!r}; files are taken for: {', '.join(PURPOSES)}.",
            remedy='Send purpose="fine-tune".',
            param="purpose",
        )

    seconds = upload.fields.get("expires_after[seconds]")
    if seconds is None:
        return purpose, None
    if not seconds.isdecimal() or not 3600 <= int(seconds) <= 2_592_000:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"expires_after.seconds is {seconds!r}; it must be 3600 to 2592000.",
            param="expires_after.seconds",
        )
    return purpose, datetime.now(UTC) + timedelta(seconds=int(seconds))
