"""Real vLLM servers for the whole test session, for the base and for a merged model, and a client of the first."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cli.commands.up import ensure_base
from shared.artifacts.manifests import MODEL_MANIFEST_NAME, AdapterManifest, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME
from shared.artifacts.signatures import MERGED_MODEL, make_key, sign_folder
from shared.base_models.catalog import BaseModelEntry, load_catalog
from shared.contract.contracts import MergeContract
from shared.contract.plan import MergeInputs, MergePlan, MergeRun, PlannedBase
from shared.settings import Settings
from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import VllmServer, start_server


@pytest.fixture(scope="session")
def vllm_server(serving_installation: ServingInstallation) -> Iterator[VllmServer]:
    """A replica of the installation's base, with default settings."""
    with start_server(serving_installation) as server:
        yield server


@pytest.fixture(scope="session")
def merged_adapter(serving_installation: ServingInstallation) -> AdapterManifest:
    """The adapter that was merged."""
    return serving_installation.publish("merged", seed=41)


@pytest.fixture(scope="session")
def merged(
    serving_installation: ServingInstallation, merged_adapter: AdapterManifest, tmp_path_factory: pytest.TempPathFactory
) -> BaseModelEntry:
    """An adapter merged by the merge program, signed and stored as its job does, and a base by what `mens up` does with its digest."""
    from worker.merge import merge

    run_dir, installation = tmp_path_factory.mktemp("merge"), serving_installation
    plan = MergePlan(
        contract=MergeContract(adapter=merged_adapter.adapter_id),
        adapter_id=merged_adapter.adapter_id,
        adapter_digest=merged_adapter.digest,
        base=PlannedBase(name=installation.entry.name, digests=installation.entry.digests),
    )
    inputs = MergeInputs(base=str(installation.base), adapter=str(installation.folder(merged_adapter)))
    manifest: ModelManifest = merge(MergeRun(plan=plan, inputs=inputs), run_dir)
    (installation.home / "trusted").write_text(make_key(installation.home / "key.pem"))
    sign_folder(run_dir / "model", installation.home / "key.pem", MERGED_MODEL)
    names = [*sorted(manifest.files), FIDELITY_NAME, PROBES_NAME, MERGED_MODEL.signature_name]
    installation.storage.put_folder("models", manifest.digest, run_dir / "model", names, MODEL_MANIFEST_NAME)
    settings = Settings(home=installation.home)
    name = ensure_base(settings, manifest.digest[:12])
    return load_catalog(settings.catalog_path).get(name)


@pytest.fixture(scope="session")
def merged_server(serving_installation: ServingInstallation, merged: BaseModelEntry) -> Iterator[VllmServer]:
    """A replica whose base is the merged model, and which serves nothing that is not signed."""
    trusted = serving_installation.home / "trusted"
    with start_server(serving_installation, serving_base=merged.name, serving_trusted_keys=trusted) as server:
        yield server


@pytest.fixture(scope="module")
def client(vllm_server: VllmServer) -> Iterator[httpx.Client]:
    """A client with the serving key."""
    with vllm_server.client() as client:
        yield client
