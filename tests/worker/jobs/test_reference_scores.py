"""The trainer's side of a certificate, with the real scoring process."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

import worker.parity
from shared.contract import DeviceSection
from shared.errors import ArtifactInvalid, Code, JobFailed, NotFound
from shared.planner import PlannedBase
from worker.attempt import Attempt
from worker.certificates import ServedBase
from worker.parity import TrainerSide
from worker.rundir import read_json, write_json


@pytest.fixture
def trainer(shop, lab, finished, tmp_path):
    run_dir = shutil.copytree(finished.run_dir, tmp_path / "run")
    lease, keeper = SimpleNamespace(job=SimpleNamespace(id="job"), token=1), SimpleNamespace(lost=None, requested=None)
    attempt = Attempt(shop.settings, shop.leases, shop.storage, lease, keeper, lambda: False)
    base = PlannedBase(name=lab.entry.name, digests=lab.entry.digests)
    return TrainerSide(attempt, base, DeviceSection(), run_dir)


@pytest.fixture
def served(lab):
    return ServedBase(lab.entry.name, lab.entry.digest, None, "float32")


def test_scores_are_made_once_for_a_base_and_dtype(trainer, served, monkeypatch):
    probes = read_json(trainer.run_dir / "probes.json")["probes"]
    scores = trainer.scores(served)
    assert [len(one) for one in scores] == [len(probe["positions"]) for probe in probes]
    monkeypatch.setattr(worker.parity, "Engine", lambda *_, **__: pytest.fail("the engine ran again"))
    assert trainer.scores(served) == scores


def test_a_scoring_that_fails_says_why(trainer, served):
    write_json(trainer.run_dir / "probes.json", {"probes": [{"token_ids": [10**9], "positions": [0]}]})
    with pytest.raises(JobFailed) as failed:
        trainer.scores(served)
    assert failed.value.code == Code.TRAINER_CRASHED


def test_a_base_that_the_worker_does_not_know(trainer, served):
    with pytest.raises(NotFound):
        trainer.scores(ServedBase("other", served.digest, None, "float32"))
    with pytest.raises(ArtifactInvalid) as refused:
        trainer.scores(ServedBase(served.name, "0" * 64, None, "float32"))
    assert refused.value.code == Code.BASE_DIGEST_MISMATCH


def test_the_tiny_base_has_a_template_for_every_probe_chat(trainer):
    encoded = trainer.encode_chats()
    assert encoded.skipped == []
    assert len(encoded.chats) == 6
