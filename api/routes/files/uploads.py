"""OpenAI's uploads API for large files: /v1/uploads. Parts arrive singly or concurrently and become one file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from api.openai.uploads import (
    CompleteUpload,
    CreateUpload,
    UploadObject,
    UploadPartObject,
    check_purpose,
    part_view,
    upload_view,
)
from api.services import Services, ServicesDep
from api.web.auth import TRAINER
from api.web.multipart import part_too_large, plain_name, receive_file
from api.web.params import Id, IdempotencyKey
from api.web.tenant_rates import UPLOAD_LIMIT
from api.web.tenant_view import TenantView, TenantViewDep
from shared.artifacts.storage import BlobWriter, Storage
from shared.database.files.contents import IdempotencyKey as UsedKey
from shared.database.files.files import File
from shared.database.files.uploads import Upload, UploadPart, size_mismatch
from shared.errors import Code, InvalidRequest, NotFound, TooLarge
from shared.hashing import CHUNK_BYTES, digest_json

router = APIRouter(prefix="/v1/uploads", tags=["uploads (OpenAI)"])

PART_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post("", dependencies=[*TRAINER, UPLOAD_LIMIT], response_model_exclude_none=True)
def create_upload(
    body: CreateUpload, services: ServicesDep, view: TenantViewDep, idempotency_key: IdempotencyKey = None
) -> UploadObject:
    """Begin an upload in parts. It accepts parts for an hour; its bytes count toward the tenant's quota from now on."""
    settings, purpose = services.settings, check_purpose(body.purpose)
    if body.bytes > settings.max_upload_bytes:
        message = f"The file is larger than {settings.max_upload_bytes} bytes."
        remedy = "Split it, or raise MENS_MAX_UPLOAD_BYTES."
        raise TooLarge(Code.FILE_TOO_LARGE, message, remedy=remedy, param="bytes")
    upload = view.uploads.create(
        plain_name(body.filename),
        purpose,
        body.bytes,
        timedelta(seconds=settings.upload_seconds),
        file_seconds=body.expires_after.seconds if body.expires_after else None,
        quota=settings.file_quota,
        idempotency_key=UsedKey(idempotency_key, digest_json(body.model_dump())) if idempotency_key else None,
    )
    return upload_view(upload)


@router.get("/{upload_id}", response_model_exclude_none=True)
def retrieve_upload(upload_id: Id, view: TenantViewDep) -> UploadObject:
    """One upload, with the parts received so far (``mens.parts``), so that it can be resumed. OpenAI has no such
    route.
    """
    parts = [part.model_dump(mode="json", include={"id", "bytes", "sha256"}) for part in view.uploads.parts(upload_id)]
    upload = view.uploads.get(upload_id)
    return upload_view(upload).model_copy(update={"mens": {"parts": parts, "file_id": upload.file_id}})


@router.post("/{upload_id}/parts", openapi_extra=PART_SCHEMA, dependencies=TRAINER)
async def add_part(upload_id: Id, request: Request, services: ServicesDep, view: TenantViewDep) -> UploadPartObject:
    """Add a part. Parts may arrive in any order and concurrently; the same bytes, sent again, are the same part."""
    await run_in_threadpool(view.uploads.check_pending, upload_id)  # before anything is read
    limit = services.settings.max_part_bytes
    with services.storage.writer() as writer:
        part = await receive_file(request, writer, limit, part_too_large(limit), name="data", fields=())
        add = partial(view.uploads.add_part, upload_id, part.size, part.sha256, writer.commit)
        return part_view(await run_in_threadpool(add))


@router.post("/{upload_id}/complete", dependencies=TRAINER, response_model_exclude_none=True)
async def complete_upload(
    upload_id: Id, body: CompleteUpload, services: ServicesDep, view: TenantViewDep
) -> UploadObject:
    """Make the parts a file, in the order of ``part_ids``. A repeated request returns the same file."""
    complete = partial(_complete, services, view, upload_id, body)
    return upload_view(*await to_thread.run_sync(complete, limiter=services.joining))


@router.post("/{upload_id}/cancel", dependencies=TRAINER, response_model_exclude_none=True)
def cancel_upload(upload_id: Id, services: ServicesDep, view: TenantViewDep) -> UploadObject:
    """Cancel an upload: it accepts no more parts, and the received ones are deleted."""
    upload = view.uploads.cancel(upload_id)
    view.uploads.drop_parts(upload_id, services.storage.delete_blob)
    return upload_view(upload)


def _complete(services: Services, view: TenantView, upload_id: str, body: CompleteUpload) -> tuple[Upload, File | None]:
    digest = digest_json(body.part_ids)
    made = view.uploads.completed(upload_id, digest) or _join(services.storage, view, upload_id, body, digest)
    view.uploads.drop_parts(upload_id, services.storage.delete_blob)
    return made


def _join(
    storage: Storage, view: TenantView, upload_id: str, body: CompleteUpload, digest: str
) -> tuple[Upload, File | None]:
    """Complete the upload and return it with its file."""
    upload, parts = view.uploads.get(upload_id), _ordered(view.uploads.parts(upload_id), body.part_ids)
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        raise size_mismatch(
            f"The parts have {size} bytes together, but the upload was created for {upload.bytes} bytes.", "part_ids"
        )
    with storage.writer() as writer:
        try:
            md5 = _copy(storage, parts, writer)
        except NotFound:
            # The upload was completed, cancelled or expired meanwhile, and its parts were deleted.
            if completed := view.uploads.completed(upload_id, digest):
                return completed
            raise
        if body.md5 and body.md5.lower() != md5:
            raise InvalidRequest(
                Code.UPLOAD_DIGEST_MISMATCH,
                f"The MD5 of the parts together is {md5}, not {body.md5}.",
                remedy="Check the order of the parts; if a part differs from the file, cancel the upload and create another.",
                param="md5",
            )
        return view.uploads.complete(upload_id, digest, writer.finish(), writer.commit)


def _ordered(parts: Sequence[UploadPart], part_ids: Sequence[str]) -> list[UploadPart]:
    by_id = {part.id: part for part in parts}
    if unknown := [part_id for part_id in part_ids if part_id not in by_id]:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"The upload has no part with the id {unknown[0]!r}.",
            remedy="List the received parts with GET /v1/uploads/{upload_id}.",
            param="part_ids",
        )
    return [by_id[part_id] for part_id in part_ids]


def _copy(storage: Storage, parts: Sequence[UploadPart], writer: BlobWriter) -> str:
    """Write the parts one after the other; return their combined MD5."""
    md5 = hashlib.md5(usedforsecurity=False)
    for part in parts:
        with storage.open_blob(part.sha256) as content:
            while chunk := content.read(CHUNK_BYTES):
                md5.update(chunk)
                writer.write(chunk)
    return md5.hexdigest()
