"""The merge job with the real child process, from claim to success."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import worker.jobs.merge
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, MODEL_MANIFEST_NAME, WEIGHTS_NAME, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME
from shared.artifacts.merged_models import verify_model_signature
from shared.artifacts.signatures import MODEL_SIGNATURE_NAME, make_key
from shared.contract.contracts import MergeContract
from shared.contract.plan import MergePlan, PlannedBase
from shared.database.job_states import JobState
from shared.database.records import Kind
from shared.errors import Code
from shared.hashing import digest_file
from tests.support.builders import claimed, new_adapter
from worker.jobs.attempt import Attempt


@pytest.fixture
def adapter(finished):
    return finished.run_dir / "adapter"


@pytest.fixture
def job(installation, tiny, adapter):
    """A queued merge of a stored adapter."""
    digest = digest_file(adapter / MANIFEST_NAME)
    installation.storage.put_folder("adapters", digest, adapter, [WEIGHTS_NAME, CONFIG_NAME], MANIFEST_NAME)
    stored = new_adapter(f"tiny@{digest}", digest=digest, base_model=tiny.entry.name)
    installation.leases.finish(claimed(installation.jobs, installation.leases), {}, adapters=[stored])
    plan = MergePlan(
        contract=MergeContract(adapter=f"tiny@{digest}"),
        adapter_id=f"tiny@{digest}",
        adapter_digest=digest,
        base=PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests),
    )
    return installation.submit(Kind.MERGE, plan.model_dump(mode="json"))


def test_merge_from_claim_to_success(installation, job, adapter, tiny, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    public = make_key(tmp_path / "key.pem")
    signing = installation.settings.model_copy(update={"signing_key": tmp_path / "key.pem"})
    replace(installation.worker, settings=signing).run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    digest = done.result["model_digest"]
    folder = installation.storage.folder("models", digest)
    assert digest_file(folder / MODEL_MANIFEST_NAME) == digest
    manifest = ModelManifest.model_validate_json((folder / MODEL_MANIFEST_NAME).read_bytes())
    assert {path.name for path in folder.iterdir()} == {
        *manifest.files, MODEL_MANIFEST_NAME, FIDELITY_NAME, PROBES_NAME, MODEL_SIGNATURE_NAME,
    }  # fmt: skip
    assert verify_model_signature(folder, manifest, {public}) is not None
    assert all(digest_file(folder / name) == expected for name, expected in manifest.files.items())
    assert done.result["files"] == sorted(manifest.files)
    assert done.result["fidelity"] == json.loads((folder / FIDELITY_NAME).read_bytes())
    assert done.result["fidelity"]["model_digest"] == digest
    assert "Merging the adapter into its base, and comparing the two." in installation.messages(job.id)

    ids = torch.arange(300, 320).reshape(1, 20)
    base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base, adapter)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    assert ((merged - expected).norm() / expected.norm()).item() < 1e-5


@pytest.fixture
def no_child(monkeypatch):
    monkeypatch.setattr(
        worker.jobs.merge, "ChildProcess", lambda *_, **__: pytest.fail("the child process was started")
    )


def test_adapter_missing_from_storage(installation, job, no_child):
    digest = MergePlan.model_validate(job.plan).adapter_digest
    (installation.storage.folder("adapters", digest) / WEIGHTS_NAME).unlink()
    installation.worker.run_job(job.id)
    failed = installation.jobs.get(job.id)
    assert (failed.state, failed.error["code"]) == (JobState.FAILED, Code.STORAGE_OBJECT_MISSING)


@pytest.mark.long
def test_adapter_changed_in_storage(installation, job):
    """A child process's coded error is the job's: `test_child_process.py`. `tests/worker/test_merge.py` tests the
    refusals.
    """
    digest = MergePlan.model_validate(job.plan).adapter_digest
    path = installation.storage.folder("adapters", digest) / WEIGHTS_NAME
    path.chmod(0o600)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    installation.worker.run_job(job.id)
    failed = installation.jobs.get(job.id)
    assert (failed.state, failed.error["code"]) == (JobState.FAILED, Code.ADAPTER_DIGEST_MISMATCH)
    assert not (installation.storage.root / "models").exists()


def test_cancel_before_the_child_starts(installation, job, no_child, monkeypatch):
    fetch = Attempt.fetch_adapter

    def cancel_meanwhile(attempt, digest, folder_name):
        installation.jobs.cancel(job.id)
        attempt.keeper.requested = "cancel"
        return fetch(attempt, digest, folder_name)

    monkeypatch.setattr(Attempt, "fetch_adapter", cancel_meanwhile)
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.CANCELLED
