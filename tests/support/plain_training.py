"""A plain training loop that uses only transformers, peft and torch, and none of the product's model, loss or optimizer
code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from shared.contract.plan import TrainingRun
from shared.preflight.held_out import split_validation
from worker.run_folder import TELEMETRY_NAME
from worker.training.data.row_order import RowOrder
from worker.training.schedule import learning_rate


def train_plainly(model: Any, run: TrainingRun, base: Path) -> list[float]:
    """Train a model's trainable parameters on a run's rows with AdamW, row by row; return the loss of each step."""
    contract, exec_ = run.plan.contract, run.plan.contract.exec
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=exec_.weight_decay)
    encoded = encoded_rows(run, base)
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
    return losses


def step_losses(run_dir: Path) -> list[float]:
    """The loss of each step in our own run."""
    events = [json.loads(line) for line in (run_dir / TELEMETRY_NAME).read_text().splitlines()]
    return [event["payload"]["loss"] for event in events if event["event"] == "step"]


def encoded_rows(run: TrainingRun, base: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids and supervised positions of every row, computed with the base's own tokenizer and chat template,
    without the product's code.
    """
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
