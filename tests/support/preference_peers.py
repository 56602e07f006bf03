"""Losses and gradients of TRL's own DPO trainer on random log-probabilities; run by the interpreter that has TRL, with a file
to write into.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CASES: list[dict[str, Any]] = [
    {"trl": {"loss_types": ["sigmoid"]}, "ours": {}},
    {"trl": {"loss_types": ["sigmoid"], "beta": 0.7}, "ours": {"beta": 0.7}},
    {"trl": {"loss_types": ["sigmoid_norm"], "beta": 1.0}, "ours": {"loss": "sigmoid_norm"}},
    {"trl": {"loss_types": ["ipo"]}, "ours": {"loss": "ipo"}},
    {
        "trl": {"loss_types": ["robust"], "label_smoothing": 0.2},
        "ours": {"label_smoothing": 0.2, "smoothing": "robust"},
    },
    # With one pair a batch TRL's `aot` is the conservative form: there is nothing to sort.
    {"trl": {"loss_types": ["aot"], "label_smoothing": 0.2}, "ours": {"label_smoothing": 0.2}},
    {"trl": {"loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.4]}, "ours": {"sft_weight": 0.4}},
]
PAIRS, LONGEST, PROMPT = 12, 400, 3


def pairs(torch: Any) -> list[dict[str, Any]]:
    """Random pairs: log-probabilities of the answers' tokens, and the reference's sums."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for number in range(PAIRS):
        longest = LONGEST if number else 1
        lengths = torch.randint(1, longest + 1, (2,), generator=generator).tolist()
        scores = [-3 * torch.rand(length, generator=generator) for length in lengths]
        reference = [score.sum().item() + 4 * torch.randn((), generator=generator).item() for score in scores]
        made.append({"scores": [score.tolist() for score in scores], "reference": reference})
    return made


def trls(pair: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Loss of one pair by TRL, and its gradient by the sums of the answers' log-probabilities; in float64, since sums of
    hundreds of tokens round differently in another order.
    """
    import torch
    from trl import DPOTrainer

    width = PROMPT + max(map(len, pair["scores"]))
    mask, scores = torch.zeros((2, width), dtype=torch.long), torch.zeros((2, width - 1), dtype=torch.float64)
    for side, values in enumerate(pair["scores"]):
        mask[side, PROMPT : PROMPT + len(values)] = 1
        scores[side, PROMPT - 1 : PROMPT - 1 + len(values)] = torch.tensor(values, dtype=torch.float64)
    scores.requires_grad_()
    outputs = SimpleNamespace(
        log_probs=scores, entropy=torch.zeros_like(scores), mean_logits=torch.zeros_like(scores), is_top1=scores > 0
    )
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda value: value, gather_for_metrics=lambda value: value
    )
    trainer = SimpleNamespace(
        **{"beta": 0.1, "label_smoothing": 0.0, "loss_weights": [1.0]} | settings,
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": torch.zeros((2, width), dtype=torch.long),
        "attention_mask": torch.ones((2, width), dtype=torch.long),
        "completion_mask": mask,
        "ref_chosen_logps": torch.tensor(pair["reference"][:1], dtype=torch.float64),
        "ref_rejected_logps": torch.tensor(pair["reference"][1:], dtype=torch.float64),
    }
    loss = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    loss.backward()
    assert scores.grad is not None
    gradient = [scores.grad[side, PROMPT - 1].item() for side in range(2)]  # every token of an answer has the same
    metrics = trainer._metrics["train"]
    return {"loss": loss.item(), "gradient": gradient, "margin": metrics["rewards/margins"][0]}


def main() -> None:
    import torch

    made = pairs(torch)
    found = [[trls(pair, case["trl"]) for pair in made] for case in CASES]
    Path(sys.argv[1]).write_text(json.dumps({"pairs": made, "found": found}))


if __name__ == "__main__":
    main()
