"""The page and files of the console, and the headers that restrict browsers in every answer."""

from __future__ import annotations

import asyncio
import re

import pytest
from fastapi.testclient import TestClient

from api.main import create_app
from api.services import make_services
from api.settings import ApiSettings
from api.web.console.files import console_files
from tests.support.doubles import FakeJobQueue

STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
STYLE = f"/console/{console_files().digest}/style.css"


def test_page_is_sent_without_a_key_and_again_only_after_a_change(anonymous: TestClient) -> None:
    page = anonymous.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    again = anonymous.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == STRICT
    assert anonymous.get("/", headers={"If-None-Match": 'W/"other"'}).status_code == 200


def test_every_address_in_the_page_is_a_file_of_the_release(anonymous: TestClient) -> None:
    addresses = re.findall(r'(?:src|href)="([^"]+)"', anonymous.get("/").text)
    assert addresses
    for address in addresses:
        assert address.startswith(f"/console/{console_files().digest}/")
        assert anonymous.get(address).status_code == 200, address


def test_files_never_change_under_their_digest(anonymous: TestClient) -> None:
    for encoding, sent in (("gzip, br", "gzip"), ("identity", None)):
        file = anonymous.get(STYLE, headers={"Accept-Encoding": encoding})
        assert file.headers.get("content-encoding") == sent
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (file.headers["vary"], file.headers["content-type"]) == ("Accept-Encoding", "text/css; charset=utf-8")
        assert file.content == console_files().others["style.css"].body


@pytest.mark.parametrize(
    "path",
    [
        "/console/0123456789abcdef/style.css",
        STYLE.replace("style.css", "index.html"),
        STYLE.replace("style.css", "%2e%2e/data/capabilities.json"),
        STYLE.replace("style.css", "..%2f..%2fmain.py"),
        STYLE.replace("style.css", ""),
    ],
)
def test_other_releases_and_other_files_are_not_found(anonymous: TestClient, path: str) -> None:
    answer = anonymous.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("CONSOLE_FILE_NOT_FOUND", "ROUTE_NOT_FOUND")


def test_missing_file_is_not_kept_by_a_cache(anonymous: TestClient) -> None:
    answer = anonymous.get("/console/0123456789abcdef/style.css")
    assert answer.json()["error"]["code"] == "CONSOLE_FILE_NOT_FOUND"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == STRICT


@pytest.mark.parametrize("path", ["/", STYLE])
def test_headers_of_page_and_files(anonymous: TestClient, path: str) -> None:
    headers = anonymous.get(path).headers
    assert headers["content-security-policy"] == STRICT
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/jobs"), ("GET", "/v1/nothing"), ("POST", "/v1/chat/completions"), ("HEAD", "/v1/models")],
)
def test_answers_of_the_api_run_nothing_in_a_browser(client: TestClient, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = client.request(method, path, headers=headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"


def test_page_needs_no_thread_and_no_database(anonymous: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*_: object, **__: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr("anyio.to_thread.run_sync", no_thread)
    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    assert anonymous.get("/").status_code == 200
    assert anonymous.get(STYLE).status_code == 200


def test_console_can_be_switched_off(settings: ApiSettings) -> None:
    off = settings.model_copy(update={"console": ApiSettings(console="off").console})  # type: ignore[arg-type]
    with TestClient(create_app(services=make_services(off, job_queue=FakeJobQueue()))) as client:
        assert [client.get(path).status_code for path in ("/", STYLE, "/health")] == [404, 404, 200]
