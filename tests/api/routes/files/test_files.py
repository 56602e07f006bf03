"""/v1/files: uploads are streamed, hashed and limited, whatever the order of the form's parts."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.settings import ApiSettings
from shared.artifacts.folder_storage import FolderStorage
from shared.database.files.files import Files
from tests.support.builders import ROWS
from tests.support.copying_storage import copied_file

BOUNDARY = "b0undary"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    return f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + value + b"\r\n"


def post(client: TestClient, *parts: bytes) -> dict[str, object]:
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    file: dict[str, object] = client.post("/v1/files", content=body, headers=headers).json()
    return file


def stored(settings: ApiSettings) -> list[Path]:
    """The blobs."""
    return [path for path in (settings.storage_dir / "blobs").rglob("*") if path.is_file()]


PURPOSE = part("purpose", b"fine-tune")
FILE = part("file", ROWS, "rows.jsonl")


@pytest.mark.parametrize("parts", [(PURPOSE, FILE), (FILE, PURPOSE)], ids=["python order", "node order"])
def test_parts_are_accepted_in_either_order(
    client: TestClient, settings: ApiSettings, parts: tuple[bytes, bytes]
) -> None:
    file = post(client, *parts)
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(ROWS), "rows.jsonl", "fine-tune")
    assert client.get(f"/v1/files/{file['id']}/content").content == ROWS
    digest = hashlib.sha256(ROWS).hexdigest()
    assert (settings.storage_dir / "blobs" / "sha256" / digest[:2] / digest).read_bytes() == ROWS


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ((FILE,), "REQUEST_INVALID", "purpose"),
        ((part("purpose", b"assistants"), FILE), "REQUEST_INVALID", "purpose"),
        ((PURPOSE,), "REQUEST_INVALID", "file"),
        ((PURPOSE, part("file", b"no file name")), "REQUEST_INVALID", "file"),
        ((part("purpose", b"x" * 10_000), FILE), "REQUEST_INVALID", None),
        ((PURPOSE, part("file", b"x" * 100_001, "big.jsonl")), "FILE_TOO_LARGE", "file"),
        ((PURPOSE, part("expires_after[seconds]", b"5"), FILE), "REQUEST_INVALID", "expires_after.seconds"),
        ((PURPOSE, part("expires_after[seconds]", b"9" * 4000), FILE), "REQUEST_INVALID", "expires_after.seconds"),
        ((PURPOSE, part("expires_after[anchor]", b"now"), FILE), "REQUEST_INVALID", "expires_after.anchor"),
    ],
)
def test_invalid_uploads_are_refused(
    client: TestClient, settings: ApiSettings, parts: tuple[bytes, ...], code: str, param: str | None
) -> None:
    error = post(client, *parts)["error"]
    assert isinstance(error, dict)
    assert (error["mens"]["code"], error["param"]) == (code, param)
    assert not list(Path(settings.storage_dir / "incoming").glob("*")), "nothing half-written is left"
    assert client.get("/v1/files").json()["data"] == []
    assert not stored(settings), "a refused file takes no space"


def test_declared_size_over_the_limit_is_refused_at_once(client: TestClient) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Content-Length": "999999999"}
    response = client.post("/v1/files", content=b"", headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["mens"]["code"] == "FILE_TOO_LARGE"


def test_body_that_is_not_a_form_is_refused(client: TestClient) -> None:
    assert client.post("/v1/files", json={}).json()["error"]["mens"]["code"] == "REQUEST_INVALID"


def test_file_name_is_the_last_part_of_the_path(client: TestClient) -> None:
    file = post(client, PURPOSE, part("file", ROWS, "../../etc/passwd"))
    assert file["filename"] == "passwd"


def test_files_are_listed_in_pages(client: TestClient) -> None:
    ids = [post(client, PURPOSE, part("file", f"{i}".encode(), "f"))["id"] for i in range(5)]
    first = client.get("/v1/files", params={"limit": 2}).json()
    assert ([f["id"] for f in first["data"]], first["has_more"]) == ([ids[4], ids[3]], True)
    rest = client.get("/v1/files", params={"limit": 5, "after": ids[3]}).json()
    assert ([f["id"] for f in rest["data"]], rest["has_more"]) == ([ids[2], ids[1], ids[0]], False)
    assert [f["id"] for f in client.get("/v1/files", params={"order": "asc"}).json()["data"]] == ids


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=5-9"}], ids=["all of it", "a range"])
def test_content_is_sent_from_a_temporary_copy(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    # Fails where the path is used after the `with` block of the storage.
    monkeypatch.setattr(FolderStorage, "local_file", copied_file)
    file = post(client, PURPOSE, FILE)
    content = client.get(f"/v1/files/{file['id']}/content", headers=headers).content
    assert content == (ROWS[5:10] if headers else ROWS)


def test_job_is_checked_on_a_temporary_copy(
    client: TestClient, job_body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderStorage, "local_file", copied_file)
    assert client.post("/v1/jobs", json=job_body).status_code == 201


def test_delete_keeps_a_blob_that_another_file_has(client: TestClient) -> None:
    one, two = post(client, PURPOSE, FILE), post(client, PURPOSE, FILE)
    assert client.delete(f"/v1/files/{one['id']}").json()["deleted"]
    assert client.get(f"/v1/files/{two['id']}/content").content == ROWS
    client.delete(f"/v1/files/{two['id']}")
    assert client.get(f"/v1/files/{two['id']}").json()["error"]["mens"]["code"] == "FILE_NOT_FOUND"


def test_file_in_use_is_not_deleted(client: TestClient, train_file: str, job_body: dict[str, object]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    response = client.delete(f"/v1/files/{train_file}")
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (409, "FILE_IN_USE")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/files/{train_file}").status_code == 200


def test_expired_file_is_deleted(app: FastAPI, client: TestClient, settings: ApiSettings) -> None:
    files = app.state.services.files
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = files.add("old", "fine-tune", 1, "1" * 64, past)
    kept = files.add("new", "fine-tune", 1, "2" * 64, past + timedelta(hours=1))
    assert files.delete_expired() == ["1" * 64]
    ids = [file["id"] for file in client.get("/v1/files").json()["data"]]
    assert kept.id in ids
    assert expired.id not in ids


def test_deletion_of_the_same_content_meanwhile_does_no_harm(
    client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, first = app.state.services, post(client, PURPOSE, FILE)
    add_file = Files.add

    def add_after_a_deletion(self: Files, *arguments: Any, **more: Any) -> Any:
        services.files.delete(first["id"], services.storage.delete_blob)
        return add_file(self, *arguments, **more)

    monkeypatch.setattr(Files, "add", add_after_a_deletion)
    second = post(client, PURPOSE, FILE)
    assert client.get(f"/v1/files/{second['id']}/content").content == ROWS


# -- requests that are repeated ---------------------------------------------------------------------------------------


def keyed(client: TestClient, key: str, content: bytes = ROWS, name: str = "rows.jsonl", **fields: str) -> Any:
    form = {"data": {"purpose": "fine-tune", **fields}, "files": {"file": (name, content)}}
    return client.post("/v1/files", headers={"Idempotency-Key": key}, **form).json()


def test_repeated_upload_gives_the_same_file(client: TestClient) -> None:
    first = keyed(client, "once")
    assert keyed(client, "once") == first
    assert keyed(client, "another")["id"] != first["id"]
    assert len(client.get("/v1/files").json()["data"]) == 2


@pytest.mark.parametrize(
    "changes",
    [{"content": ROWS + b"\n"}, {"name": "other.jsonl"}, {"expires_after[seconds]": "3600"}],
    ids=["content", "name", "expiry"],
)
def test_key_of_another_upload_is_refused(client: TestClient, settings: ApiSettings, changes: dict[str, Any]) -> None:
    keyed(client, "once")
    error = keyed(client, "once", **changes)["error"]
    assert (error["mens"]["code"], error["param"]) == ("IDEMPOTENCY_CONFLICT", "Idempotency-Key")
    assert len(stored(settings)) == 1


def test_key_is_free_again_when_its_file_is_deleted(client: TestClient) -> None:
    first = keyed(client, "once")
    client.delete(f"/v1/files/{first['id']}")
    assert keyed(client, "once", ROWS + ROWS)["bytes"] == 2 * len(ROWS)
