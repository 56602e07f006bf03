"""The merge job with the real engine, from claim to success."""

from __future__ import annotations

import pytest
import torch

import worker.merge_job
from shared.contract import MergeContract
from shared.digest import digest_file
from shared.errors import Code
from shared.job import Kind
from shared.jobstate import State
from shared.manifest import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.model_manifest import MODEL_MANIFEST_NAME, ModelManifest
from shared.planner import MergePlan, PlannedBase
from tests.shared.samples import claimed, new_adapter


@pytest.fixture
def adapter(finished):
    return finished.run_dir / "adapter"


@pytest.fixture
def job(shop, lab, adapter):
    """A queued merge of a stored adapter."""
    digest = digest_file(adapter / MANIFEST_NAME)
    shop.storage.put_folder("adapters", digest, adapter, [WEIGHTS_NAME, CONFIG_NAME], MANIFEST_NAME)
    stored = new_adapter(f"tiny@{digest}", digest=digest, base_model=lab.entry.name)
    shop.leases.finish(claimed(shop.ledger, shop.leases), {}, adapters=[stored])
    plan = MergePlan(
        contract=MergeContract(adapter=f"tiny@{digest}"),
        adapter_id=f"tiny@{digest}",
        adapter_digest=digest,
        base=PlannedBase(name=lab.entry.name, digests=lab.entry.digests),
    )
    return shop.submit(Kind.MERGE, plan.model_dump(mode="json"))


def test_a_whole_merge(shop, job, adapter, lab):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    shop.worker.run_job(job.id)
    done = shop.ledger.get(job.id)
    assert done.state is State.SUCCEEDED, done.error
    digest = done.result["model_digest"]
    folder = shop.storage.folder("models", digest)
    assert digest_file(folder / MODEL_MANIFEST_NAME) == digest
    manifest = ModelManifest.model_validate_json((folder / MODEL_MANIFEST_NAME).read_bytes())
    assert {path.name for path in folder.iterdir()} == {*manifest.files, MODEL_MANIFEST_NAME}
    assert all(digest_file(folder / name) == expected for name, expected in manifest.files.items())
    assert done.result["files"] == sorted(manifest.files)
    assert "Merging the adapter into its base." in shop.messages(job.id)

    ids = torch.arange(300, 320).reshape(1, 20)
    base = AutoModelForCausalLM.from_pretrained(lab.base, dtype=torch.float32)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base, adapter)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    assert ((merged - expected).norm() / expected.norm()).item() < 1e-5


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr(worker.merge_job, "Engine", lambda *_, **__: pytest.fail("the engine was started"))


def test_adapter_that_is_not_in_the_storage(shop, job, no_engine):
    digest = MergePlan.model_validate(job.plan).adapter_digest
    (shop.storage.folder("adapters", digest) / WEIGHTS_NAME).unlink()
    shop.worker.run_job(job.id)
    failed = shop.ledger.get(job.id)
    assert (failed.state, failed.error["code"]) == (State.FAILED, Code.STORAGE_OBJECT_MISSING)


def test_adapter_that_was_changed_in_the_storage(shop, job):
    digest = MergePlan.model_validate(job.plan).adapter_digest
    path = shop.storage.folder("adapters", digest) / WEIGHTS_NAME
    path.chmod(0o600)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    shop.worker.run_job(job.id)
    failed = shop.ledger.get(job.id)
    assert (failed.state, failed.error["code"]) == (State.FAILED, Code.ADAPTER_DIGEST_MISMATCH)
    assert not (shop.storage.root / "models").exists()


def test_cancel_before_the_engine_starts(shop, job, no_engine, monkeypatch):
    fetch = worker.merge_job.fetch_adapter

    def cancel_meanwhile(attempt, plan):
        shop.ledger.cancel(job.id)
        attempt.keeper.requested = "cancel"
        return fetch(attempt, plan)

    monkeypatch.setattr(worker.merge_job, "fetch_adapter", cancel_meanwhile)
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.CANCELLED
