"""LoRA over an unquantised base: the losses and weights of transformers, peft and torch alone, and the same bytes always."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.hashing import digest_file
from shared.preflight.held_out import split_validation
from tests.support.training_runs import ROWS, PauseAfter
from worker.child_runtime import StopRequested
from worker.run_folder import ADAPTER_FOLDER, METRICS_NAME, TELEMETRY_NAME, list_checkpoints
from worker.training.data.row_order import RowOrder
from worker.training.schedule import learning_rate

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


def step_losses(run_dir) -> list[float]:
    events = [json.loads(line) for line in (run_dir / TELEMETRY_NAME).read_text().splitlines()]
    return [event["payload"]["loss"] for event in events if event["event"] == "step"]


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
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=exec_.weight_decay)
    encoded = encoded_rows(run, tiny_llama.base)
    numbers, _ = split_validation(len(encoded), 0, exec_.seed)
    rows = [encoded[number] for number in numbers]
    order = RowOrder(contract, np.full(len(rows), 5, dtype=np.uint8), 0)
    losses = []
    for step in order.after(0):
        optimizer.zero_grad()
        chosen = [rows[number] for number in step.rows]
        targets = sum(int(mask.sum()) for _, mask in chosen)
        total = torch.zeros(())
        for ids, mask in chosen:
            logits = model(input_ids=ids[None]).logits[0, :-1].float()
            losses_of_row = functional.cross_entropy(logits, ids[1:], reduction="none")
            total = total + (losses_of_row * mask[1:]).sum()
        (total / targets).backward()
        torch.nn.utils.clip_grad_norm_(parameters, exec_.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step.number - 1, order.total_steps, exec_.learning_rate, 1)
        optimizer.step()
        losses.append(total.item() / targets)
    ours = step_losses(run_dir)
    assert len(ours) == len(losses) == STEPS
    assert max(abs(one - other) for one, other in zip(ours, losses, strict=True)) <= 1e-5
    saved = load_file(run_dir / ADAPTER_FOLDER / WEIGHTS_NAME)
    for name, value in model.state_dict().items():
        if "lora_" in name:
            other = saved[name.replace(".default.", ".")]
            assert (value - other).norm() <= 1e-4 * other.norm(), name


def encoded_rows(run, base):
    """Ids and learnt positions of every row, by the base's own tokenizer and chat template, without the product's code."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = []
    for line in Path(run.inputs.train).read_text().splitlines():
        row = json.loads(line)
        turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
        prompt = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, tokenize=False)
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
        start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        mask = torch.zeros(len(ids))
        ends = (ids == tokenizer.eos_token_id).nonzero().flatten()
        mask[start : int(ends[-1]) + 1] = 1
        rows.append((ids, mask))
    return rows


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


@pytest.mark.parametrize("step", [1, 6, 11])
def test_resumed_after_a_step(trained, tiny_llama, tmp_path, step):
    run, run_dir = trained
    with pytest.raises(StopRequested):
        tiny_llama.train(run, tmp_path / "first", stop=PauseAfter(step))
    again = tiny_llama.train(run, tmp_path / "second", resume=list_checkpoints(tmp_path / "first")[-1])
    for name in (f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}", f"{ADAPTER_FOLDER}/{MANIFEST_NAME}", METRICS_NAME):
        assert digest_file(again / name) == digest_file(run_dir / name), name
