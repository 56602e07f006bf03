"""OpenAI's files surface: /v1/files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from api.authentication import requires
from api.ids import Id
from api.openai_types import Deleted, FileObject
from api.openai_view import file_view
from api.pages import After, Page, page_of
from api.scope import Scope, ScopeDep
from api.services import Services, ServicesDep
from api.uploads import Upload, receive_upload
from shared.errors import Code, InvalidRequest, Unavailable
from shared.registry import File
from shared.tenancy import Role

router = APIRouter(prefix="/v1/files", tags=["files (OpenAI)"])

TRAINER = [requires(Role.TRAINER)]
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


@router.post("", openapi_extra=UPLOAD_SCHEMA, dependencies=TRAINER)
async def create_file(request: Request, services: ServicesDep, scope: ScopeDep) -> FileObject:
    """Upload a JSONL file. It is streamed to storage while it is hashed; its rows are checked when a job names it."""
    limit = services.settings.max_file_bytes
    upload = await receive_upload(request.stream(), dict(request.headers), services.storage, limit, FIELDS)
    purpose, expires_at = _purpose(upload), _expiry(upload)
    file = await run_in_threadpool(
        scope.registry.add_file, upload.filename, purpose, upload.size, upload.sha256, expires_at
    )
    await run_in_threadpool(_refuse_lost, scope, services, file)
    return file_view(file)


@router.get("")
def list_files(
    scope: ScopeDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(pattern=r"^[^\x00]*$")] = None,
) -> Page[FileObject]:
    """Files, newest first unless asked otherwise."""
    files = scope.registry.files(after=after, limit=limit, purpose=purpose, newest_first=order == "desc")
    return page_of([file_view(file) for file in files], limit)


@router.get("/{file_id}")
def retrieve_file(file_id: Id, scope: ScopeDep) -> FileObject:
    """One file's record."""
    return file_view(scope.registry.file(file_id))


@router.get("/{file_id}/content", response_class=FileResponse)
def file_content(file_id: Id, services: ServicesDep, scope: ScopeDep) -> FileResponse:
    """A file's bytes."""
    file = scope.registry.file(file_id)
    path = services.storage.open_blob(file.sha256)
    return FileResponse(path, media_type="application/octet-stream", filename=file.filename)


@router.delete("/{file_id}", dependencies=TRAINER)
def delete_file(file_id: Id, services: ServicesDep, scope: ScopeDep) -> Deleted:
    """Delete a file; one that an unfinished job needs is kept."""
    scope.registry.delete_file(file_id, services.storage.delete_blob)
    return Deleted(id=file_id, object="file")


def _refuse_lost(scope: Scope, services: Services, file: File) -> None:
    """The same content's last file may have been deleted, blob and all, between the upload and its record."""
    if services.storage.blob_path(file.sha256).is_file():
        return
    scope.registry.delete_file(file.id)
    raise Unavailable(
        Code.STORAGE_OBJECT_MISSING,
        "A file with the same content was deleted while this one was stored.",
        remedy="Upload it again.",
        param="file",
    )


def _purpose(upload: Upload) -> str:
    purpose = upload.fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"The purpose is {purpose!r}; files are taken for: {', '.join(PURPOSES)}.",
            remedy='Send purpose="fine-tune".',
            param="purpose",
        )
    return purpose


def _expiry(upload: Upload) -> datetime | None:
    seconds = upload.fields.get("expires_after[seconds]")
    if seconds is None:
        return None
    if not seconds.isdecimal() or not 3600 <= int(seconds) <= 2_592_000:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"expires_after.seconds is {seconds!r}; it must be 3600 to 2592000.",
            param="expires_after.seconds",
        )
    return datetime.now(UTC) + timedelta(seconds=int(seconds))
