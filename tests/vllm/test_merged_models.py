"""A merged model served as a base: merged by the job's program, added as a base by the command, measured, then offered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.services import make_services
from api.settings import ApiSettings
from shared.artifacts.merge_fidelity import PROBES_NAME
from shared.base_models.catalog import BaseModelEntry, load_catalog, save_catalog
from shared.database.base_certificates import BaseCertificates
from shared.database.connection import Database
from shared.hashing import digest_file
from shared.replicas import replica_name
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.serving_installation import KEY, ServingInstallation
from tests.support.vllm_server import VllmServer
from tests.support.waiting import eventually
from worker.jobs.base_certificates import BaseCertifier
from worker.settings import WorkerSettings


@pytest.fixture
def database_url(sqlite_template: Path, tmp_path: Path) -> str:
    """One kind of database is enough here."""
    path = shutil.copy(sqlite_template, tmp_path / "mens.db")
    return f"sqlite:///{path}"


@pytest.fixture
def certifier(
    serving_installation: ServingInstallation, merged_server: VllmServer, database: Database
) -> BaseCertifier:
    """The certifier as the control worker runs it."""
    settings = WorkerSettings(home=serving_installation.home, serving_urls=[merged_server.url], serving_key=KEY)
    return BaseCertifier(settings, BaseCertificates(database))


@pytest.fixture
def api(
    serving_installation: ServingInstallation, merged_server: VllmServer, database_url: str
) -> Iterator[TestClient]:
    """The API in front of that replica."""
    settings = ApiSettings(
        home=serving_installation.home,
        database_url=database_url,
        serving_urls=[merged_server.url],
        serving_key=KEY,
        broker_url="redis://127.0.0.1:9/0",
        sandbox="off",
    )
    services = make_services(settings, job_queue=FakeJobQueue())
    _, secret = services.keys.create("test")
    with TestClient(application_of(services), headers={"Authorization": f"Bearer {secret}"}) as client:
        yield client


def test_a_merged_model_is_offered_once_its_replica_was_measured(
    api: TestClient, certifier: BaseCertifier, merged: BaseModelEntry, merged_server: VllmServer
) -> None:
    question = {"model": merged.name, "messages": [{"role": "user", "content": "the red fox"}], "max_tokens": 8}
    refused = api.post("/v1/chat/completions", json=question)
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (404, "MODEL_UNCERTIFIED")
    assert merged.name not in {model["id"] for model in api.get("/v1/models").json()["data"]}

    name = replica_name(merged_server.url)
    assert certifier.run_round() == [name]
    shown = api.get(f"/v1/models/{merged.name}").json()["mens"]
    found = shown["certificates"][name]
    print(json.dumps({"effect": found["effect_rms_nats"], **found["parity"]}))
    assert shown["offered"] and found["passed"]
    assert found["base"] == {"name": merged.name, "digest": merged.digest, "twin_of": None, "dtype": "float32"}
    assert found["effect_rms_nats"] > 0.1
    assert found["parity"]["engine_error_max_nats"] < 1e-4
    assert found["template"]["chats"] == ["plain", "system", "multi-turn", "learnt", "tools", "unicode", "thoughts"]
    assert merged.name in {model["id"] for model in api.get("/v1/models").json()["data"]}
    # Another process's change: seen within a quarter of a second.
    eventually(lambda: api.post("/v1/chat/completions", json=question).status_code == 200, 5)
    assert certifier.run_round() == [], "this start of the replica has its certificate"


def test_a_replica_of_other_weights_than_were_merged_is_not_offered(
    api: TestClient,
    certifier: BaseCertifier,
    merged: BaseModelEntry,
    serving_installation: ServingInstallation,
    tmp_path: Path,
) -> None:
    """The merge has recorded scores that differ from the replica's: one of the two computes a different model."""
    path = serving_installation.home / "bases" / merged.name / PROBES_NAME
    raw, catalog_path = path.read_bytes(), certifier.settings.catalog_path
    catalog = load_catalog(catalog_path)
    probes = json.loads(raw)
    probes["probes"][0]["merged"][0] -= 0.01
    path.write_text(json.dumps(probes))
    assert merged.merged_from is not None
    changed = merged.merged_from.model_copy(update={"probes_digest": digest_file(path)})
    try:
        save_catalog(catalog_path, catalog.having(merged.model_copy(update={"merged_from": changed})))
        certifier.run_round()
        shown = api.get(f"/v1/models/{merged.name}").json()["mens"]
        assert not shown["offered"]
        (found,) = shown["certificates"].values()
        assert found["failed"] == ["engine_error"]
        request = {"model": merged.name, "prompt": "x"}
        eventually(lambda: "failed engine_error" in api.post("/v1/completions", json=request).text, 5)
    finally:
        path.write_bytes(raw)
        save_catalog(catalog_path, catalog)
