"""LoRA over an unquantised base: the losses and weights of transformers, peft and torch alone, and always the same
bytes.
"""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.hashing import digest_file
from tests.support.plain_training import step_losses, train_plainly
from tests.support.training_runs import ROWS, PauseAfter
from worker.child_runtime import StopRequested
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, TELEMETRY_NAME, list_checkpoints

STEPS = 12
RUN = {
    "quant": {"base": "none"},
    "exec": {
        "epochs": 4,
        "batch_size": 1,
        "grad_accum": 2,
        "learning_rate": 0.005,
        "warmup_steps": 1,
        "checkpoint_every": 1,
    },
}
SINGLE_TURNS = [
    *(row for row in ROWS if "prompt" in row),
    {"prompt": "What is a row?", "response": "A line of a table."},
]
"""Six rows: three steps an epoch."""


@pytest.fixture(scope="module")
def trained(tiny_llama, tmp_path_factory):
    """A run of (lora, none) and its plan."""
    folder = tmp_path_factory.mktemp("full")
    run = tiny_llama.plan_run(folder, SINGLE_TURNS, **RUN)
    return run, tiny_llama.train(run, folder / "run")


def test_losses_and_weights_are_those_of_a_plain_loop(trained, tiny_llama):
    """transformers, peft and torch.optim.AdamW in one loop, none of the product's model, loss or optimizer code."""
    run, run_dir = trained
    contract, exec_ = run.plan.contract, run.plan.contract.exec
    model = AutoModelForCausalLM.from_pretrained(tiny_llama.base, dtype=torch.float32).requires_grad_(False)
    torch.manual_seed(exec_.seed)
    adapter = contract.adapter
    model = get_peft_model(
        model, LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    ).train()
    losses = train_plainly(model, run, tiny_llama.base)
    ours = step_losses(run_dir)
    assert len(ours) == len(losses) == STEPS
    assert max(abs(one - other) for one, other in zip(ours, losses, strict=True)) <= 1e-5
    saved = load_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME)
    for name, value in model.state_dict().items():
        if "lora_" in name:
            other = saved[name.replace(".default.", ".")]
            assert (value - other).norm() <= 1e-4 * other.norm(), name


def test_the_manifest_states_the_precision(trained):
    _, run_dir = trained
    manifest = AdapterManifest.model_validate_json((run_dir / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())
    assert (manifest.adapter_method, manifest.quant.base_quant, manifest.trained_dtype) == ("lora", "none", "float32")
    assert manifest.precision == "float32"
    start = json.loads((run_dir / TELEMETRY_NAME).read_text().splitlines()[0])
    assert start["payload"]["base_precision"] == "float32"


def test_qlora_over_an_unquantised_base_is_lora(trained, tiny_llama, tmp_path):
    """The seeds' Candle kernel takes the pair (qlora, none): the method's name changes no byte of the weights."""
    _, run_dir = trained
    run = tiny_llama.plan_run(tmp_path, SINGLE_TURNS, **RUN, adapter={"method": "qlora"})
    assert (run.plan.contract.adapter.method, run.plan.contract.quant.base) == ("qlora", "none")
    again = tiny_llama.train(run, tmp_path / "run")
    assert digest_file(again / ADAPTER_FOLDER / WEIGHTS_NAME) == digest_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME)


@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 11))])
def test_resumed_after_a_step(trained, tiny_llama, tmp_path, step):
    run, run_dir = trained
    with pytest.raises(StopRequested):
        tiny_llama.train(run, tmp_path / "first", stop=PauseAfter(step))
    again = tiny_llama.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "first")[-1])
    for name in (f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}", f"{ADAPTER_FOLDER}/{MANIFEST_NAME}", METRICS_NAME):
        assert digest_file(again / name) == digest_file(run_dir / name), name
