"""An application on a new SQLite database, with one base model in its catalogue and a key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.data_view import reports
from api.services import make_services
from api.settings import ApiSettings
from tests.support.api_installation import application_of, settings_for
from tests.support.builders import BASE, ROWS
from tests.support.doubles import FakeJobQueue
from tests.support.tiny_base import write_base
from tests.support.whole_responses import whole_responses


@pytest.fixture(scope="session", autouse=True)
def _whole_responses() -> Iterator[None]:
    with whole_responses():
        yield


@pytest.fixture(scope="session", autouse=True)
def _reports_at_once() -> Iterator[None]:
    """A file's report is the first answer, however long a loaded machine takes for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "FIRST_WAIT_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model's folder."""
    return write_base(tmp_path_factory.mktemp("bases") / BASE)


@pytest.fixture
def settings(tmp_path: Path, base_folder: Path) -> ApiSettings:
    return settings_for(tmp_path, base_folder)


@pytest.fixture
def app(settings: ApiSettings, sqlite_template: Path) -> FastAPI:
    """An application of its own, but for the routes: a test that adds one uses ``create_app``."""
    shutil.copy(sqlite_template, settings.home / "mens.db")
    return application_of(make_services(settings, job_queue=FakeJobQueue()))


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[TestClient]:
    """A client without a key."""
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(app: FastAPI, anonymous: TestClient) -> TestClient:
    """A client with a key."""
    _, secret = app.state.services.keys.create("test")
    anonymous.headers["Authorization"] = f"Bearer {secret}"
    return anonymous


@pytest.fixture
def train_file(client: TestClient) -> str:
    """Id of an uploaded file with forty rows."""
    response = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("rows.jsonl", ROWS)})
    return str(response.json()["id"])


@pytest.fixture
def job_body(train_file: str) -> dict[str, object]:
    """Body of POST /v1/jobs."""
    contract = {"model": {"hf_repo": BASE}, "data": {"train_file": train_file}}
    return {"kind": "finetune", "contract": contract}
