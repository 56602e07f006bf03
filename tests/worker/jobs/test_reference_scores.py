"""Reference scores of a certificate, with the real scoring process."""

from __future__ import annotations

import math
import shutil
from types import SimpleNamespace

import pytest

import worker.jobs.reference_scores
from shared.contract.plan import PlannedBase
from shared.contract.sections import DeviceSection
from shared.database.leases import Lease
from shared.database.records import Job, Kind
from shared.errors import ArtifactInvalid, Code, JobFailed, NotFound
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import ServedBase
from worker.jobs.reference_scores import ReferenceScores
from worker.probe_chats import CHATS
from worker.run_folder import read_json, write_json


@pytest.fixture
def trainer(installation, tiny, finished, tmp_path):
    run_dir = shutil.copytree(finished.run_dir, tmp_path / "run")
    job = Job.model_construct(id="job", kind=Kind.FINETUNE, max_gpu_minutes=None, max_wall_seconds=None)
    lease, keeper = Lease(job, 1), SimpleNamespace(lost=None, requested=None, contact_at=math.inf)
    attempt = Attempt(installation.settings, installation.leases, installation.storage, lease, keeper, lambda: False)
    base = PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests)
    return ReferenceScores(attempt, base, DeviceSection(), run_dir)


@pytest.fixture
def served(tiny):
    return ServedBase(tiny.entry.name, tiny.entry.digest, None, "float32")


def test_scores_are_computed_once_for_a_base_and_dtype(trainer, served, monkeypatch):
    probes = read_json(trainer.run_dir / "probes.json")["probes"]
    scores = trainer.scores(served)
    assert [len(one) for one in scores] == [len(probe["positions"]) for probe in probes]
    monkeypatch.setattr(
        worker.jobs.reference_scores, "ChildProcess", lambda *_, **__: pytest.fail("the child process ran again")
    )
    assert trainer.scores(served) == scores


@pytest.mark.long
def test_failed_scoring_fails_the_job(trainer, served):
    """As any child process that crashes: `test_child_process.py`."""
    write_json(trainer.run_dir / "probes.json", {"probes": [{"token_ids": [10**9], "positions": [0]}]})
    with pytest.raises(JobFailed) as failed:
        trainer.scores(served)
    assert failed.value.code == Code.TRAINER_CRASHED


def test_unknown_or_other_base_is_refused(trainer, served):
    with pytest.raises(NotFound):
        trainer.scores(ServedBase("other", served.digest, None, "float32"))
    with pytest.raises(ArtifactInvalid) as refused:
        trainer.scores(ServedBase(served.name, "0" * 64, None, "float32"))
    assert refused.value.code == Code.BASE_DIGEST_MISMATCH


def test_tiny_base_encodes_every_probe_chat(trainer):
    encoded = trainer.encode_chats()
    assert encoded.skipped == []
    assert len(encoded.chats) == len(CHATS)
