"""Checkpoints: complete or absent, few, without pickle, and with everything that a run needs."""

from __future__ import annotations

import json
import random
import shutil
import socket

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import worker.training.checkpoint
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest, verify_adapter
from shared.base_models.weights import read_folder_tensors
from shared.contract.sections import QuantSection
from shared.errors import Code, JobFailed
from worker.run_folder import CHECKPOINTS_FOLDER, list_checkpoints
from worker.training.checkpoint import (
    KEEP,
    SCHEMA,
    Occasion,
    Progress,
    keep_result,
    load_checkpoint,
    refuse_missing,
    save_checkpoint,
)
from worker.training.distributed import DistributedContext
from worker.training.model.load import attach_lora, load_base, trainable
from worker.training.reproducibility import Guarantee, environment

CPU = torch.device("cpu")
HERE = environment(CPU)


class Bench:
    """A model and an optimizer that has made a step."""

    def __init__(self, tiny, folder):
        self.plan, self.base = tiny.plan_run(folder).plan, tiny.base
        quantised = load_base(tiny.base, QuantSection(), CPU)
        self.model = attach_lora(quantised, self.plan.contract.adapter, seed=0)
        self.optimizer = torch.optim.AdamW(trainable(self.model))

    def step(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in trainable(self.model):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in trainable(self.model)]


@pytest.fixture(scope="module")
def bench(tiny, tmp_path_factory) -> Bench:
    made = Bench(tiny, tmp_path_factory.mktemp("bench"))
    made.step(1)
    return made


@pytest.fixture
def save(tiny, bench, tokenizer, tmp_path):
    def write(step: int, occasion: Occasion = Occasion.STEP):
        progress = Progress(step, 100 * step, [{"step": step, "train_loss": 1.5}])
        parts = (bench.plan, bench.model, tokenizer, bench.optimizer)
        return save_checkpoint(tmp_path, *parts, progress, HERE, tiny.base, occasion=occasion)

    return write


def test_files_of_a_checkpoint(save):
    folder = save(12)
    assert folder.name == "step-00000012"
    names = {WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME, "trainer_state.safetensors", "trainer_state.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert list(folder.parent.iterdir()) == [folder]


def test_nothing_in_it_is_pickle(save):
    for path in save(1).iterdir():
        assert path.suffix in (".json", ".safetensors")
        assert not path.read_bytes().startswith((b"\x80", b"PK"))


def test_state_says_what_it_belongs_to(save, bench):
    state = json.loads((save(3) / "trainer_state.json").read_text())
    assert state["schema"] == SCHEMA
    assert state["plan_digest"] == bench.plan.digest
    assert (state["step"], state["trained_tokens"]) == (3, 300)


def test_checkpoint_is_a_sound_adapter(save, tiny_base):
    folder = save(3)
    manifest = AdapterManifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    assert manifest.step == 3
    verify_adapter(folder, manifest, read_folder_tensors(tiny_base))


def test_weights_moments_and_random_state_come_back(save, bench, tiny, tmp_path):
    torch.manual_seed(77)
    random.seed(77)
    np.random.seed(77)  # noqa: NPY002
    folder = save(2)
    expected_draw, other_draws = torch.rand(4), (random.random(), np.random.rand())  # noqa: NPY002
    other = Bench(tiny, tmp_path / "other")
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    progress = load_checkpoint(folder, bench.plan, other.model, other.optimizer, HERE, tiny.base)
    assert progress == Progress(2, 200, [{"step": 2, "train_loss": 1.5}], resumed_from=[2])
    assert torch.equal(torch.rand(4), expected_draw)
    assert (random.random(), np.random.rand()) == other_draws  # noqa: NPY002
    assert all(torch.equal(a, b) for a, b in zip(other.weights(), bench.weights(), strict=True))
    for one, two in zip(trainable(bench.model), trainable(other.model), strict=True):
        mine, theirs = bench.optimizer.state[one], other.optimizer.state[two]
        assert mine.keys() == theirs.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_run_that_continues_elsewhere_is_no_longer_bit_exact(save, bench):
    folder = save(4)
    here = load_checkpoint(folder, bench.plan, bench.model, bench.optimizer, HERE, bench.base)
    elsewhere = load_checkpoint(folder, bench.plan, bench.model, bench.optimizer, HERE | {"threads": 64}, bench.base)
    assert (here.guarantee, elsewhere.guarantee) == (Guarantee.BIT_EXACT, Guarantee.STATE_EXACT)
    assert (here.inexact_reasons, elsewhere.inexact_reasons) == ([], ["threads"])


@pytest.mark.parametrize(("guarantee", "reasons"), [("bit_exact", []), ("state_exact", ["not_recorded"])])
def test_a_checkpoint_of_a_release_that_recorded_no_reasons_is_resumed(save, bench, guarantee, reasons):
    path = save(4) / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["inexact_reasons"]
    path.write_text(json.dumps(state | {"guarantee": guarantee}))
    progress = load_checkpoint(path.parent, bench.plan, bench.model, bench.optimizer, HERE, bench.base)
    assert (progress.guarantee, progress.inexact_reasons) == (guarantee, reasons)


def test_all_moments_are_stored(save, bench):
    tensors = load_file(save(1) / "trainer_state.safetensors")
    assert len(tensors) == 3 + 3 * len(trainable(bench.model)) + ("rng.cuda" in tensors)


def test_the_last_few_are_kept(save, tmp_path):
    for step in (2, 4, 6, 8, 10):
        save(step)
    kept = [folder.name for folder in list_checkpoints(tmp_path)]
    assert kept == ["step-00000006", "step-00000008", "step-00000010"]
    assert len(kept) == KEEP


def test_of_interim_checkpoints_the_newest_is_kept_and_displaces_no_other(save, tmp_path):
    for step in (2, 4, 6, 8):
        save(step)
    for step in (9, 10):
        save(step, Occasion.INTERIM)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["04", "06", "08", "10"]
    save(12)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["06", "08", "12"]


def test_steps_displace_no_epochs_end_and_the_newest_is_kept_to_resume_from(save, tmp_path):
    for step in range(1, 9):
        save(step, Occasion.EPOCH_END if step % 4 == 0 else Occasion.STEP)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["04", "07", "08"]
    for step in range(9, 15):
        save(step, Occasion.EPOCH_END if step % 4 == 0 else Occasion.STEP)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["04", "08", "12", "14"]
    keep_result(tmp_path)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["04", "08", "12"]


def test_a_checkpoint_of_a_release_that_did_not_mark_epochs_is_one_of_a_step(save, tmp_path):
    for step in (3, 4):
        path = save(step, Occasion.EPOCH_END) / "trainer_state.json"
        state = json.loads(path.read_text())
        del state["epoch_end"]
        path.write_text(json.dumps(state))
    for step in (6, 9):
        save(step, Occasion.EPOCH_END)
    assert [folder.name[-2:] for folder in list_checkpoints(tmp_path)] == ["04", "06", "09"]


def test_order_is_by_step_not_by_text(save, tmp_path):
    for step in (9, 10, 1000):
        save(step)
    assert [folder.name[-4:] for folder in list_checkpoints(tmp_path)] == ["0009", "0010", "1000"]


def test_crash_while_writing_leaves_nothing_that_counts(save, tmp_path, monkeypatch):
    save(1)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(worker.training.checkpoint, "write_json", fail)
        save(2)
    assert len(list((tmp_path / CHECKPOINTS_FOLDER).iterdir())) == 1
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000001"]
    save(2)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000001", "step-00000002"]


def test_a_step_is_written_again_without_complaint(save, tmp_path):
    assert save(5) == save(5)
    assert len(list_checkpoints(tmp_path)) == 1


@pytest.mark.parametrize("change", [{"plan_digest": "0" * 64}, {"schema": "vox_mens_checkpoint_v0"}])
def test_other_plan_or_schema_is_refused_before_anything_changes(save, bench, tmp_path, change):
    folder = shutil.copytree(save(1), tmp_path / "changed")
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = bench.weights()
    with pytest.raises(JobFailed) as failed:
        load_checkpoint(folder, bench.plan, bench.model, bench.optimizer, HERE, bench.base)
    assert failed.value.code == Code.CHECKPOINT_MISMATCH
    assert all(torch.equal(a, b) for a, b in zip(before, bench.weights(), strict=True))


def test_missing_checkpoint_folder_is_not_a_checkpoint(tmp_path):
    assert list_checkpoints(tmp_path) == []


def test_checkpoint_that_is_missing_has_a_code(tmp_path):
    refuse_missing(DistributedContext(), None)
    with pytest.raises(JobFailed) as failed:
        refuse_missing(DistributedContext(), tmp_path / "step-00000003")
    assert (failed.value.code, failed.value.retryable) == (Code.CHECKPOINT_MISSING, True)
    assert "step-00000003" in failed.value.message


class Three(DistributedContext):
    """Three processes, of which this one is the second: the first has another checkpoint, the third none."""

    def gather(self, note: str) -> list[str]:
        return ["a" * 64 + " node-1", note, "absent node-3"]


def test_processes_with_another_checkpoint_or_none_are_named(save):
    folder = save(3)
    with pytest.raises(JobFailed) as failed:
        refuse_missing(Three(1, 3), folder)
    mine = f"{socket.gethostname()} (process 1)"
    assert failed.value.details == {"processes": [mine, "node-3 (process 2)"]}
