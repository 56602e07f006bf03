"""A run that continues from an adapter starts at its parent, and trains from there as peft does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.contract.sections import AdapterSection, QuantSection
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from tests.support.plain_training import step_losses, train_plainly
from tests.support.training_runs import ROWS, PauseAfter, parent_in
from worker.child_runtime import StopRequested
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, TELEMETRY_NAME, list_checkpoints
from worker.training.model.load import attach_lora, load_base
from worker.training.model.parent import start_from
from worker.training.supervised import SupervisedMethod
from worker.training.trainer import set_up

STEPS = 10
RUN = {
    "quant": {"base": "none"},
    "exec": {
        "epochs": 5,
        "batch_size": 1,
        "grad_accum": 2,
        "learning_rate": 0.005,
        "warmup_steps": 1,
        "checkpoint_every": 1,
    },
}
FIRST = [row for row in ROWS if "prompt" in row][:4]
SECOND = [{"prompt": f"What is {word}?", "response": f"It is {word}."} for word in ("one", "two", "three", "four")]
IDS = torch.arange(300, 340).reshape(2, 20)


@pytest.fixture(scope="module")
def parent(tiny_llama, tmp_path_factory) -> Path:
    """Folder of the adapter of ten steps."""
    folder = tmp_path_factory.mktemp("parent")
    run = tiny_llama.plan_run(folder, FIRST, **RUN)
    return tiny_llama.train(run, folder / "run") / ADAPTER_FOLDER


def in_peft(base: Path, adapter: Path, *, is_trainable: bool = False) -> PeftModel:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter, is_trainable=is_trainable)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.double().eval()(input_ids=IDS, use_cache=False).logits


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def started(tiny, parent: Path, **shape: object):
    """Return the model of a run before its first step, without the fused functions, which round in a different order
    from peft.
    """
    of_parent = parent_in(parent)
    section = AdapterSection.model_validate({"rank": of_parent.rank, "alpha": of_parent.alpha} | shape)
    model = attach_lora(load_base(tiny.base, QuantSection(base="none"), torch.device("cpu")), section, seed=7)
    start_from(model, of_parent, parent, tiny.base, section)
    return model


@pytest.mark.parametrize(
    "adapter",
    [
        {},
        {"rank": 8, "alpha": 16},
        {"rank": 8, "alpha": 8},
        {"rank": 4, "alpha": 16},
        {"rank": 6, "alpha": 7},
        {"dropout": 0.5},
    ],
    ids=["same shape", "larger rank", "half the ratio", "twice the ratio", "a ratio that rounds", "dropout"],
)
def test_step_zero_computes_the_parents_function(tiny_llama, parent, adapter):
    expected, base = logits(in_peft(tiny_llama.base, parent)), logits(in_peft(tiny_llama.base, parent).unload())
    found = logits(started(tiny_llama, parent, **adapter))
    # Scaling by a number other than a power of two rounds each weight once.
    assert distance(found, expected) <= (1e-5 if adapter.get("rank") == 6 else 1e-6)
    assert distance(base, expected) > 1e-3


def test_more_modules_than_the_parents_start_at_zero(tiny_llama, tmp_path):
    run = tiny_llama.plan_run(tmp_path / "first", FIRST, **RUN, adapter={"target_modules": ["q_proj", "v_proj"]})
    small = tiny_llama.train(run, tmp_path / "first" / "run") / ADAPTER_FOLDER
    model = started(tiny_llama, small)
    assert distance(logits(model), logits(in_peft(tiny_llama.base, small))) <= 1e-6
    assert sum("lora_A" in name for name, _ in model.named_parameters()) == 4 * 7


def test_a_parent_over_nf4_starts_where_it_ended(tiny_llama, tmp_path):
    sections = RUN | {"quant": {"base": "nf4"}}
    run = tiny_llama.plan_run(tmp_path / "first", FIRST, **sections)
    ended = tiny_llama.train(run, tmp_path / "first" / "run")
    again = tiny_llama.plan_run(tmp_path / "second", SECOND, parent=ended / ADAPTER_FOLDER, **sections)
    model = set_up(again, tmp_path / "run", tmp_path / "cache", SupervisedMethod()).model
    stored = load_file(ended / ADAPTER_FOLDER / WEIGHTS_NAME)
    for name, value in model.state_dict().items():
        if "lora_" in name:
            assert torch.equal(value, stored[name.replace(".default.", ".")]), name


@pytest.fixture(scope="module")
def continued(tiny_llama, tmp_path_factory, parent):
    """A run that has gone on from the parent, and its folder."""
    folder = tmp_path_factory.mktemp("continued")
    run = tiny_llama.plan_run(folder, SECOND, parent=parent, **RUN)
    return run, tiny_llama.train(run, folder / "run")


def test_losses_are_those_of_peft_with_a_new_optimizer(tiny_llama, tmp_path, parent, continued):
    """Ten steps and ten more: ``PeftModel.from_pretrained(is_trainable=True)`` and a new AdamW."""
    run, run_dir = continued
    ours = step_losses(run_dir)
    theirs = train_plainly(in_peft(tiny_llama.base, parent, is_trainable=True).train(), run, tiny_llama.base)
    assert len(ours) == len(theirs) == STEPS
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) <= 1e-5
    with pytest.raises(StopRequested):
        new = tiny_llama.plan_run(tmp_path, SECOND, **RUN)
        tiny_llama.train(new, tmp_path / "new", stop=PauseAfter(1))
    assert abs(ours[0] - step_losses(tmp_path / "new")[0]) > 1e-3


def test_manifest_and_telemetry_name_the_parent(parent, continued):
    _, run_dir = continued
    of_parent = AdapterManifest.model_validate_json((parent / MANIFEST_NAME).read_bytes())
    manifest = AdapterManifest.model_validate_json((run_dir / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())
    assert manifest.parent.model_dump() == {"id": of_parent.adapter_id, "digest": of_parent.digest, "step": STEPS}
    assert b'"parent"' not in of_parent.to_bytes()
    start = json.loads((run_dir / TELEMETRY_NAME).read_text().splitlines()[0])
    assert start["payload"]["parent"] == of_parent.adapter_id
    assert f"## Started from\n\n| adapter, the parent first | its steps |\n|---|---|\n| {of_parent.adapter_id}" in (
        run_dir / "MODEL_CARD.md"
    ).read_text().replace("\\", "")


@pytest.fixture(scope="module")
def whole(tiny_llama, tmp_path_factory, parent):
    """A run that has gone on from the parent in another shape and with dropout, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    run = tiny_llama.plan_run(folder, SECOND, parent=parent, **RUN, adapter={"rank": 8, "dropout": 0.1})
    return run, tiny_llama.train(run, folder / "run")


@pytest.mark.parametrize("step", [5, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 9))])
def test_resumed_after_a_step(tiny_llama, tmp_path, whole, step):
    run, undisturbed = whole
    with pytest.raises(StopRequested):
        tiny_llama.train(run, tmp_path / "first", stop=PauseAfter(step))
    again = tiny_llama.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "first")[-1])
    for name in (f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}", f"{ADAPTER_FOLDER}/{MANIFEST_NAME}", METRICS_NAME):
        assert digest_file(again / name) == digest_file(undisturbed / name), name


def test_other_files_than_the_planned_parents_are_refused(tiny_llama, tmp_path, parent):
    run = tiny_llama.plan_run(tmp_path, SECOND, parent=parent, **RUN)
    changed = Path(shutil.copytree(parent, tmp_path / "changed"))
    raw = bytearray((changed / WEIGHTS_NAME).read_bytes())
    raw[-1] ^= 1
    (changed / WEIGHTS_NAME).write_bytes(raw)
    run = run.model_copy(update={"inputs": run.inputs.model_copy(update={"parent": str(changed)})})
    with pytest.raises(ArtifactInvalid) as refused:
        tiny_llama.train(run, tmp_path / "run")
    assert refused.value.code == Code.ADAPTER_DIGEST_MISMATCH


def test_a_run_without_a_layer_of_its_parent_is_refused(tiny_llama, tmp_path, parent):
    run = tiny_llama.plan_run(tmp_path, SECOND, parent=parent, **RUN, adapter={"target_modules": ["q_proj"]})
    with pytest.raises(ArtifactInvalid) as refused:
        tiny_llama.train(run, tmp_path / "run")
    assert refused.value.code == Code.ADAPTER_SHAPE_MISMATCH
