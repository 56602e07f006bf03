"""A merged model served as a base of its own: merged by the job's program, made a base by the command, measured, then offered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.services import make_services
from api.settings import ApiSettings
from cli.commands.up import ensure_base
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME
from shared.artifacts.signatures import MERGED_MODEL, make_key, sign_folder
from shared.base_models.catalog import BaseModelEntry, load_catalog, save_catalog
from shared.contract.plan import MergeInputs, MergePlan, MergeRun, PlannedBase
from shared.contract.sections import MergeContract
from shared.database.base_certificates import BaseCertificates
from shared.database.connection import Database
from shared.hashing import digest_file
from shared.replicas import replica_name
from shared.settings import Settings
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.serving_installation import KEY, ServingInstallation
from tests.support.vllm_server import VllmServer, start_server
from tests.support.waiting import eventually
from worker.jobs.base_certificates import BaseCertifier
from worker.settings import WorkerSettings


@pytest.fixture(scope="module")
def merged(serving_installation: ServingInstallation, tmp_path_factory: pytest.TempPathFactory) -> BaseModelEntry:
    """An adapter merged by the merge program, signed and stored as its job does, and a base by what `mens up` does with its digest."""
    from worker.merge import merge

    run_dir, installation = tmp_path_factory.mktemp("merge"), serving_installation
    adapter = installation.publish("served-merged", seed=43)
    plan = MergePlan(
        contract=MergeContract(adapter=adapter.adapter_id),
        adapter_id=adapter.adapter_id,
        adapter_digest=adapter.digest,
        base=PlannedBase(name=installation.entry.name, digests=installation.entry.digests),
    )
    inputs = MergeInputs(base=str(installation.base), adapter=str(installation.folder(adapter)))
    manifest: ModelManifest = merge(MergeRun(plan=plan, inputs=inputs), run_dir)
    (installation.home / "trusted").write_text(make_key(installation.home / "key.pem"))
    sign_folder(run_dir / "model", installation.home / "key.pem", MERGED_MODEL)
    names = [*sorted(manifest.files), FIDELITY_NAME, PROBES_NAME, MERGED_MODEL.signature_name]
    installation.storage.put_folder("models", manifest.digest, run_dir / "model", names, MODEL_MANIFEST_NAME)
    settings = Settings(home=installation.home)
    name = ensure_base(settings, manifest.digest[:12])
    return load_catalog(settings.catalog_path).get(name)


@pytest.fixture(scope="module")
def merged_server(serving_installation: ServingInstallation, merged: BaseModelEntry) -> Iterator[VllmServer]:
    """A replica whose base is the merged model, and which serves nothing that is not signed."""
    trusted = serving_installation.home / "trusted"
    with start_server(serving_installation, serving_base=merged.name, serving_trusted_keys=trusted) as server:
        yield server


@pytest.fixture
def database_url(sqlite_template: Path, tmp_path: Path) -> str:
    """One kind of database is enough here."""
    path = shutil.copy(sqlite_template, tmp_path / "mens.db")
    return f"sqlite:///{path}"


@pytest.fixture
def certifier(
    serving_installation: ServingInstallation, merged_server: VllmServer, database: Database
) -> BaseCertifier:
    """What the control worker runs."""
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
    assert found["template"]["chats"] == ["plain", "system", "multi-turn", "learnt", "tools", "unicode"]
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
    """The merge has recorded other scores than the replica's: either of the two computes another model."""
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
