"""The API's application and the settings of an installation, from which the fixtures of `tests/api` are made."""

from __future__ import annotations

from copy import copy
from functools import cache
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import State

from api.main import create_app
from api.services import Services
from api.settings import ApiSettings
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.settings import paths_in
from tests.support.builders import BASE


def settings_for(home: Path, base_folder: Path) -> ApiSettings:
    """Settings of an installation in a folder, with one base in its catalogue; replica and broker do not exist."""
    settings = _settings().model_copy(update=paths_in(home) | {"home": home}, deep=True)
    save_catalog(settings.catalog_path, Catalog(bases=[_entry(base_folder)]))
    return settings


@cache
def _settings() -> ApiSettings:
    """The settings before the folder is known: reading them takes 20 ms, too long for each of a thousand tests."""
    return ApiSettings(
        home="/nonexistent",
        max_file_bytes=100_000,
        max_body_bytes=10_000,
        max_grammar_bytes=8_000,
        serving_urls=["http://127.0.0.1:9"],
        event_poll_seconds=0.02,
        tenant_uploads_per_minute=None,
        tenant_plans_per_minute=None,
        tenant_graders_per_minute=None,
        tenant_file_views_per_minute=None,
        failed_authentications_per_minute=1_000_000,  # the access matrix tries many, all from one address
        public_url="https://testserver",
        broker_url="redis://127.0.0.1:9/0",
        sandbox="off",
    )


@cache
def _entry(base_folder: Path) -> BaseModelEntry:
    source = LocalSource(path=str(base_folder))
    return BaseModelEntry(name=BASE, source=source, digests=digest_model_folder(base_folder))


@cache
def application() -> FastAPI:
    """An application that only provides the routes: creating them takes a third of a second, too long for each of 500
    tests.
    """
    return create_app(ApiSettings(home="/nonexistent"))


def application_of(services: Services) -> FastAPI:
    """A new application that shares only the routes; a test that adds a route uses ``create_app``."""
    app = copy(application())
    app.state = State({"services": services})
    return app
