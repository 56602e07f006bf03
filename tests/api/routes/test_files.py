"""Uploads are streamed, hashed, limited, and taken in whatever order the parts come."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.settings import ApiSettings
from shared.registry import Registry
from tests.api.conftest import ROWS

BOUNDARY = "b0undary"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    return f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + value + b"\r\n"


def post(client: TestClient, *parts: bytes) -> dict[str, object]:
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    answer: dict[str, object] = client.post("/v1/files", content=body, headers=headers).json()
    return answer


PURPOSE = part("purpose", b"fine-tune")
FILE = part("file", ROWS, "rows.jsonl")


@pytest.mark.parametrize("parts", [(PURPOSE, FILE), (FILE, PURPOSE)], ids=["python order", "node order"])
def test_parts_in_either_order(client: TestClient, settings: ApiSettings, parts: tuple[bytes, bytes]) -> None:
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
    ],
)
def test_bad_uploads(
    client: TestClient, settings: ApiSettings, parts: tuple[bytes, ...], code: str, param: str | None
) -> None:
    error = post(client, *parts)["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["param"]) == (code, param)
    assert not list(Path(settings.storage_dir / "incoming").glob("*")), "nothing half-written is left"
    assert client.get("/v1/files").json()["data"] == []


def test_a_declared_size_over_the_limit_is_refused_at_once(client: TestClient) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Content-Length": "999999999"}
    answer = client.post("/v1/files", content=b"", headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "FILE_TOO_LARGE"


def test_a_body_that_is_no_form(client: TestClient) -> None:
    assert client.post("/v1/files", json={}).json()["error"]["code"] == "REQUEST_INVALID"


def test_file_names_are_shown_and_never_used(client: TestClient) -> None:
    file = post(client, PURPOSE, part("file", ROWS, "../../etc/passwd"))
    assert file["filename"] == "passwd"


def test_paging(client: TestClient) -> None:
    ids = [post(client, PURPOSE, part("file", f"{i}".encode(), "f"))["id"] for i in range(5)]
    first = client.get("/v1/files", params={"limit": 2}).json()
    assert ([f["id"] for f in first["data"]], first["has_more"]) == ([ids[4], ids[3]], True)
    rest = client.get("/v1/files", params={"limit": 5, "after": ids[3]}).json()
    assert ([f["id"] for f in rest["data"]], rest["has_more"]) == ([ids[2], ids[1], ids[0]], False)
    assert [f["id"] for f in client.get("/v1/files", params={"order": "asc"}).json()["data"]] == ids


def test_delete_keeps_a_blob_that_another_file_has(client: TestClient) -> None:
    one, two = post(client, PURPOSE, FILE), post(client, PURPOSE, FILE)
    assert client.delete(f"/v1/files/{one['id']}").json()["deleted"]
    assert client.get(f"/v1/files/{two['id']}/content").content == ROWS
    client.delete(f"/v1/files/{two['id']}")
    assert client.get(f"/v1/files/{two['id']}").json()["error"]["code"] == "FILE_NOT_FOUND"


def test_a_file_in_use_is_kept(client: TestClient, train_file: str, job_body: dict[str, object]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    answer = client.delete(f"/v1/files/{train_file}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "FILE_IN_USE")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/files/{train_file}").status_code == 200


def test_a_file_expires(app: FastAPI, client: TestClient, settings: ApiSettings) -> None:
    registry = app.state.services.registry
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = registry.add_file("old", "fine-tune", 1, "1" * 64, past)
    kept = registry.add_file("new", "fine-tune", 1, "2" * 64, past + timedelta(hours=1))
    assert registry.delete_expired_files() == ["1" * 64]
    ids = [file["id"] for file in client.get("/v1/files").json()["data"]]
    assert kept.id in ids
    assert expired.id not in ids


def test_upload_whose_blob_was_deleted_meanwhile_is_asked_for_again(
    client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = app.state.services
    add_file = Registry.add_file

    def add_after_a_deletion(self: Registry, *arguments: Any) -> Any:
        services.storage.delete_blob(hashlib.sha256(ROWS).hexdigest())
        return add_file(self, *arguments)

    monkeypatch.setattr(Registry, "add_file", add_after_a_deletion)
    error = post(client, PURPOSE, FILE)["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["mens"]["retryable"]) == ("STORAGE_OBJECT_MISSING", True)
    assert client.get("/v1/files").json()["data"] == []
