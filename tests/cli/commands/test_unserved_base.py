"""A base of the catalogue that no replica of the installation serves: the API and ``mens`` name the served base and the
command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    TwinOf,
    digest_model_folder,
    save_catalog,
)
from shared.replicas import ReplicaCapabilities
from tests.support.api_installation import application_of
from tests.support.asgi_server import serve
from tests.support.cli_installation import CliInstallation
from tests.support.socket_replica import RawReplica
from tests.support.tiny_base import write_base
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

TWIN = "small-nf4"
LENGTHS = {"large": 1024, "small": 512, TWIN: 256}
UNSERVED = "large is not served here; small is."
SERVE_BOTH = "Serve it with `mens up --base small --base large`"
DIGEST = re.compile("[0-9a-f]{12}")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return str(tmp_path / "rows.jsonl")


@pytest.fixture
def catalog(installation: CliInstallation, tmp_path: Path) -> Catalog:
    """The bases ``large``, ``small`` and the latter's twin."""
    large, small, twin = (_entry(tmp_path / "bases" / name) for name in LENGTHS)
    of_small = TwinOf(name=small.name, digests=small.digests, double_quant=True)
    catalog = Catalog(bases=[large, small, twin.model_copy(update={"twin_of": of_small})])
    save_catalog(installation.services.settings.catalog_path, catalog)
    return catalog


@pytest.fixture
def api(installation: CliInstallation, catalog: Catalog) -> Iterator[httpx.Client]:
    """An installation whose replica serves ``small``."""
    with _running(installation, catalog.get("small")) as client:
        yield client


@contextmanager
def _running(installation: CliInstallation, served: BaseModelEntry) -> Iterator[httpx.Client]:
    """A client of the installation, and ``mens`` as another, while its one replica serves a base."""
    replica = RawReplica(
        served.name,
        serves=ReplicaCapabilities(
            base=served.name,
            base_digest=served.tuned_digest,
            served_digest=served.digest,
            twin_of=served.twin_of.name if served.twin_of else None,
            max_lora_rank=16,
        ),
    )
    services = installation.services
    services.settings.serving_urls[:] = [replica.url]
    _, secret = services.keys.create("client")
    for url in serve(application_of(services), lifespan="on"):
        installation.patch.setenv("MENS_API_URL", url)
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
            eventually(services.replicas.served_bases)
            yield client
    replica.stop()


def _entry(folder: Path) -> BaseModelEntry:
    """A base that differs from the others in the longest context of its config."""
    write_base(folder, max_position_embeddings=LENGTHS[folder.name])
    return BaseModelEntry(name=folder.name, source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))


def test_a_job_on_an_unserved_base_is_refused_with_the_command_that_serves_it(
    installation: CliInstallation, api: httpx.Client, rows: str
) -> None:
    refused = installation.mens("train", rows, "--model", "large", "--no-watch", code=1)
    assert refused.startswith(f"error: NOT_SERVABLE_BASE: {UNSERVED} {SERVE_BOTH}")
    assert refused.endswith("nothing was uploaded")
    contract = {"model": {"hf_repo": "large"}, "data": {"train_file": _upload(api, rows)}}
    for path in ("/v1/plans", "/v1/jobs"):
        response = api.post(path, json={"kind": "finetune", "contract": contract})
        error = response.json()["error"]
        assert (response.status_code, error["mens"]["code"]) == (422, "NOT_SERVABLE_BASE")
        assert error["message"].startswith(UNSERVED) and error["mens"]["remedy"].startswith(SERVE_BOTH)
        assert not DIGEST.search(json.dumps(error)) and not DIGEST.search(refused)
    unpublished = installation.invoke("train", rows, "--model", "large", "--no-publish", "--no-watch", "--json")
    assert json.loads(unpublished.stdout)["base_model"] == "large"


def test_a_chat_with_an_unserved_base_is_refused_with_the_command_that_serves_it(
    installation: CliInstallation, api: httpx.Client
) -> None:
    refused = installation.mens("chat", "large", "hello", code=1)
    assert f"BASE_NOT_SERVED: {UNSERVED} {SERVE_BOTH}" in refused
    assert not DIGEST.search(refused)


def test_a_twin_is_refused_with_the_name_of_its_original(
    installation: CliInstallation, catalog: Catalog, rows: str
) -> None:
    with _running(installation, catalog.get(TWIN)):
        refused = installation.mens("train", rows, "--model", TWIN, "--no-watch", code=1)
    assert f"{TWIN} (the twin of small) is served here only with the adapters of its original." in refused
    assert "Use small, its original; or train without publishing" in refused


def test_a_job_that_names_no_base_takes_the_only_served_one(
    installation: CliInstallation, api: httpx.Client, rows: str
) -> None:
    """From the command line and through both routes of the API; the twin's adapters are not served."""
    job = json.loads(installation.invoke("train", rows, "--no-watch", "--json").stdout)
    assert job["base_model"] == "small"
    file = _upload(api, rows)
    native = api.post("/v1/jobs", json={"kind": "finetune", "contract": {"data": {"train_file": file}}}).json()
    assert (native["base_model"], native["contract"]["model"]["hf_repo"]) == ("small", "small")
    assert api.post("/v1/fine_tuning/jobs", json={"training_file": file}).json()["model"] == "small"


def _upload(api: httpx.Client, rows: str) -> str:
    sent = api.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("rows.jsonl", Path(rows).read_bytes())})
    return str(sent.json()["id"])
