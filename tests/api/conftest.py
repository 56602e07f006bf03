"""An application on a fresh SQLite database, with one base model in its catalogue and a key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import copy
from functools import cache
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.datastructures import State

from api.main import create_app
from api.services import make_services
from api.settings import ApiSettings
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from tests.support.builders import BASE, ROWS
from tests.support.doubles import FakeJobQueue
from tests.support.tiny_base import write_base


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model's folder."""
    return write_base(tmp_path_factory.mktemp("bases") / BASE)


def settings_for(home: Path, base_folder: Path) -> ApiSettings:
    """Settings of an installation in a folder, with one base in its catalogue; its replica and broker do not exist."""
    settings = ApiSettings(
        home=home,
        max_file_bytes=100_000,
        max_body_bytes=10_000,
        serving_urls=["http://127.0.0.1:9"],
        event_poll_seconds=0.02,
        tenant_uploads_per_minute=None,
        tenant_plans_per_minute=None,
        failed_authentications_per_minute=1_000_000,  # the access matrix tries many, all from one address
        broker_url="redis://127.0.0.1:9/0",
    )
    save_catalog(settings.catalog_path, Catalog(bases=[_entry(base_folder)]))
    return settings


@cache
def _entry(base_folder: Path) -> BaseModelEntry:
    source = LocalSource(path=str(base_folder))
    return BaseModelEntry(name=BASE, source=source, digests=digest_model_folder(base_folder))


@pytest.fixture
def settings(tmp_path: Path, base_folder: Path) -> ApiSettings:
    return settings_for(tmp_path, base_folder)


@cache
def application() -> FastAPI:
    """An application for its routes alone: making them takes a third of a second, too much for each of 500 tests."""
    return create_app(ApiSettings(home="/nonexistent"))


@pytest.fixture(scope="session")
def routes() -> FastAPI:
    return application()


@pytest.fixture
def app(settings: ApiSettings, sqlite_template: Path, routes: FastAPI) -> FastAPI:
    """An application of its own, but for the routes: a test that adds one uses ``create_app``."""
    shutil.copy(sqlite_template, settings.home / "mens.db")
    app = copy(routes)
    app.state = State({"services": make_services(settings, job_queue=FakeJobQueue())})
    return app


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
