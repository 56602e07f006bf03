"""/v1/uploads: large files in parts that arrive in any order, are repeated, are wrong, or never arrive."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.settings import ApiSettings
from shared.artifacts.folder_storage import FolderStorage
from tests.support.builders import ROWS

PIECES = [ROWS[start : start + 300] for start in range(0, len(ROWS), 300)]


def begin(client: TestClient, headers: dict[str, str] | None = None, **changes: Any) -> Any:
    body = {"bytes": len(ROWS), "filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"} | changes
    return client.post("/v1/uploads", json=body, headers=headers)


def send(client: TestClient, upload_id: str, content: bytes) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("part", content)})


def complete(client: TestClient, upload_id: str, part_ids: list[str], **more: Any) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": part_ids, **more})


def sent_in_parts(client: TestClient, pieces: list[bytes] = PIECES) -> tuple[str, list[str]]:
    """A pending upload with its parts' ids."""
    upload_id = str(begin(client).json()["id"])
    return upload_id, [send(client, upload_id, piece).json()["id"] for piece in pieces]


def fault(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["mens"]["code"], error["param"]


def stored(settings: ApiSettings) -> list[Path]:
    folders = (settings.storage_dir / "blobs", settings.storage_dir / "incoming")
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def test_parts_become_a_file_that_a_job_can_use(client: TestClient, settings: ApiSettings, job_body: Any) -> None:
    client.delete(f"/v1/files/{job_body['contract']['data']['train_file']}")
    upload_id, part_ids = sent_in_parts(client)
    done = complete(client, upload_id, part_ids, md5=hashlib.md5(ROWS).hexdigest().upper()).json()
    assert (done["status"], done["file"]["bytes"], done["file"]["filename"]) == ("completed", len(ROWS), "rows.jsonl")
    assert client.get(f"/v1/files/{done['file']['id']}/content").content == ROWS
    assert len(stored(settings)) == 1, "no part is left"
    job_body["contract"]["data"]["train_file"] = done["file"]["id"]
    assert client.post("/v1/jobs", json=job_body).status_code == 201


def test_pending_upload_has_openais_keys_alone(client: TestClient) -> None:
    upload = begin(client, filename="../../rows.jsonl").json()
    assert upload.pop("id").startswith("upload-")
    assert upload.pop("expires_at") - upload.pop("created_at") == 3600
    assert upload == {
        "object": "upload", "bytes": len(ROWS), "filename": "rows.jsonl", "purpose": "fine-tune", "status": "pending",
    }  # fmt: skip


def test_order_is_that_of_the_completion(client: TestClient) -> None:
    upload_id = begin(client).json()["id"]
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda piece: send(client, upload_id, piece).json(), PIECES[::-1]))
    done = complete(client, upload_id, [part["id"] for part in parts[::-1]]).json()
    assert client.get(f"/v1/files/{done['file']['id']}/content").content == ROWS


def test_parts_with_the_same_content_are_taken_twice(client: TestClient) -> None:
    upload_id = begin(client, bytes=6).json()["id"]
    first, second = (send(client, upload_id, b"abc").json()["id"] for _ in range(2))
    done = complete(client, upload_id, [first, second]).json()
    assert client.get(f"/v1/files/{done['file']['id']}/content").content == b"abcabc"


def test_upload_is_resumed_with_the_parts_that_have_come(client: TestClient) -> None:
    upload_id, part_ids = sent_in_parts(client, PIECES[:2])
    known = client.get(f"/v1/uploads/{upload_id}").json()["mens"]["parts"]
    assert [part["sha256"] for part in known] == [hashlib.sha256(piece).hexdigest() for piece in PIECES[:2]]
    assert [part["id"] for part in known] == part_ids
    assert send(client, upload_id, PIECES[0]).json()["id"] == part_ids[0], "sent again, because no answer came"


def test_completion_is_repeated(client: TestClient) -> None:
    upload_id, part_ids = sent_in_parts(client)
    first, second = (complete(client, upload_id, part_ids) for _ in range(2))
    assert first.json() == second.json()
    assert fault(complete(client, upload_id, part_ids[::-1])) == (409, "UPLOAD_STATE_CONFLICT", "upload_id")
    client.delete(f"/v1/files/{first.json()['file']['id']}")
    assert "file" not in complete(client, upload_id, part_ids).json()


def test_completion_survives_one_that_was_cut_short(
    client: TestClient, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, part_ids = sent_in_parts(client)
    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "delete_blob", lambda *_: 1 / 0)
        assert complete(client, upload_id, part_ids).status_code == 500
    assert complete(client, upload_id, part_ids).json()["status"] == "completed"
    assert len(stored(settings)) == 1


def test_cancelled_upload_leaves_nothing(client: TestClient, settings: ApiSettings) -> None:
    upload_id, part_ids = sent_in_parts(client)
    assert client.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    assert stored(settings) == []
    assert fault(send(client, upload_id, b"x"))[:2] == (409, "UPLOAD_STATE_CONFLICT")
    assert fault(complete(client, upload_id, part_ids))[:2] == (409, "UPLOAD_STATE_CONFLICT")


def test_upload_that_is_cancelled_while_it_is_completed_has_no_file(
    client: TestClient, app: FastAPI, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, part_ids = sent_in_parts(client)
    open_blob = FolderStorage.open_blob

    def cancel_first(self: FolderStorage, sha256: str) -> Any:
        uploads = app.state.services.uploads
        uploads.cancel(upload_id)
        uploads.drop_parts(upload_id, self.delete_blob)
        return open_blob(self, sha256)

    monkeypatch.setattr(FolderStorage, "open_blob", cancel_first)
    assert fault(complete(client, upload_id, part_ids))[:2] == (409, "UPLOAD_STATE_CONFLICT")
    assert stored(settings) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"purpose": "assistants"}, (400, "REQUEST_INVALID", "purpose")),
        ({"bytes": 0}, (400, "REQUEST_INVALID", "bytes")),
        ({"bytes": "many"}, (400, "REQUEST_INVALID", "bytes")),
        ({"bytes": 2**40}, (413, "FILE_TOO_LARGE", "bytes")),
        ({"filename": ""}, (400, "REQUEST_INVALID", "filename")),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, (400, "REQUEST_INVALID", "expires_after.seconds")),
        ({"expires_after": {"anchor": "now", "seconds": 5000}}, (400, "REQUEST_INVALID", "expires_after.anchor")),
        ({"sizes": 1}, (400, "REQUEST_INVALID", "sizes")),
    ],
)
def test_wrong_uploads_are_refused(client: TestClient, changes: Any, expected: Any) -> None:
    assert fault(begin(client, **changes)) == expected


def test_name_with_nul_is_stored_without(client: TestClient) -> None:
    assert begin(client, filename="a\0b").json()["filename"] == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"files": {"data": ("part", b"")}}, (400, "DATASET_EMPTY", "data")),
        ({"files": {"file": ("part", b"x")}}, (400, "REQUEST_INVALID", "data")),
        ({"json": {}}, (400, "REQUEST_INVALID", None)),
        ({"files": {"data": ("part", b"x" * (len(ROWS) + 1))}}, (400, "UPLOAD_SIZE_MISMATCH", "data")),
    ],
)
def test_wrong_parts_are_refused(client: TestClient, settings: ApiSettings, form: Any, expected: Any) -> None:
    upload_id = begin(client).json()["id"]
    assert fault(client.post(f"/v1/uploads/{upload_id}/parts", **form)) == expected
    assert stored(settings) == []


@pytest.mark.parametrize(("size", "path"), [(2000, "parts"), (80_000, "parts"), (80_000, "parts/")])
def test_large_parts_are_refused(app: FastAPI, client: TestClient, settings: ApiSettings, size: int, path: str) -> None:
    object.__setattr__(app.state.services, "settings", settings.model_copy(update={"max_part_bytes": 1000}))
    upload_id = begin(client).json()["id"]
    response = client.post(f"/v1/uploads/{upload_id}/{path}", files={"data": ("part", b"x" * size)})
    assert fault(response) == (413, "FILE_TOO_LARGE", "data")
    assert stored(settings) == []


@pytest.mark.parametrize(
    ("choose", "more", "expected"),
    [
        (lambda ids: ids[:-1], {}, (400, "UPLOAD_SIZE_MISMATCH", "part_ids")),
        (lambda ids: [*ids, "part-none"], {}, (400, "REQUEST_INVALID", "part_ids")),
        (lambda _: [], {}, (400, "REQUEST_INVALID", "part_ids")),
        (lambda ids: ids, {"md5": "0" * 32}, (400, "UPLOAD_DIGEST_MISMATCH", "md5")),
        (lambda ids: ids, {"md5": "none"}, (400, "REQUEST_INVALID", "md5")),
    ],
)
def test_wrong_completions_are_refused_and_can_be_corrected(
    client: TestClient, settings: ApiSettings, choose: Any, more: Any, expected: Any
) -> None:
    upload_id, part_ids = sent_in_parts(client)
    before = stored(settings)
    assert fault(complete(client, upload_id, choose(part_ids), **more)) == expected
    assert stored(settings) == before
    assert complete(client, upload_id, part_ids).status_code == 200


@pytest.mark.parametrize("action", ["", "/parts", "/complete", "/cancel"])
def test_unknown_upload_is_not_found(client: TestClient, action: str) -> None:
    bodies = {"/parts": {"files": {"data": ("part", b"x")}}, "/complete": {"json": {"part_ids": ["part-1"]}}}
    response = client.request("POST" if action else "GET", f"/v1/uploads/upload-1{action}", **bodies.get(action, {}))
    assert fault(response) == (404, "UPLOAD_NOT_FOUND", "upload_id")


def test_repeated_request_gives_the_same_upload(client: TestClient) -> None:
    key = {"Idempotency-Key": "once"}
    first = begin(client, key).json()
    assert begin(client, key).json() == first
    assert fault(begin(client, key, bytes=7)) == (409, "IDEMPOTENCY_CONFLICT", "Idempotency-Key")
    assert begin(client).json()["id"] != first["id"]
