"""Losses and gradients of TRL's own DPO and KTO trainers on random log-probabilities, and whole runs of them; run by
the interpreter that has TRL, with a file to write into, or ``run`` and a file that describes the run.
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
KTO_CASES: list[dict[str, float]] = [
    {},
    {"beta": 0.5},
    {"desirable_weight": 1.3, "undesirable_weight": 0.4},
]
KLS = (0.0, 1.7, -2.0)
"""Mean gains of mismatched answers; below 0, TRL uses 0."""
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
    """Loss of one pair by TRL, and its gradient with respect to the sums of the answers' log-probabilities; in float64,
    because sums of hundreds of tokens round differently in another order.
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


def trls_rated(answers: list[dict[str, Any]], settings: dict[str, float], kl: float) -> dict[str, Any]:
    """Loss of a batch of rated answers by TRL, and its gradient with respect to the sums of their log-probabilities.

    Args:
        answers: pairs as above; the first answer of each is rated good, the second bad.
        kl: mean of what the mismatched answers have gained.
    """
    import torch
    from trl import KTOTrainer

    scores = torch.tensor([sum(side) for pair in answers for side in pair["scores"]], dtype=torch.float64)
    scores.requires_grad_()
    reference = torch.tensor([one for pair in answers for one in pair["reference"]], dtype=torch.float64)
    count = len(scores)
    by_token = torch.zeros((count, PROMPT), dtype=torch.float64)
    by_token[:, -1] = 1  # one scored token has the whole sum: TRL adds up the tokens of an answer
    outputs = SimpleNamespace(
        log_probs=by_token * scores[:, None],
        entropy=torch.zeros_like(by_token),
        mean_logits=torch.zeros_like(by_token),
    )
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda value: value, gather_for_metrics=lambda value: value
    )
    trainer = SimpleNamespace(
        **{"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0} | settings,
        model=SimpleNamespace(training=True),
        accelerator=accelerator,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=True,
        loss_type="kto",
        _compute_kl_logps=lambda _model, batch: batch["ref_KL_logps"] + kl,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    mask = torch.zeros((count, PROMPT + 1), dtype=torch.long)
    mask[:, -1] = 1
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": torch.tensor([True, False] * len(answers)),
        "ref_logps": reference,
        "ref_KL_logps": reference,
    }
    loss = KTOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    loss.backward()
    assert scores.grad is not None
    rewards = [trainer._metrics["train"][f"rewards/{kind}"][0] for kind in ("chosen", "rejected")]
    return {"loss": loss.item(), "gradient": scores.grad.tolist(), "rewards": rewards}


def rated_ids(answer: Any) -> dict[str, Any]:
    """One of our rated answers, and the answer with which KTO compares it, as rows of TRL's prepared data set."""
    (prompt, completion), (_, other) = map(divided, (answer.chat, answer.mismatched().chat))
    return {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "KL_completion_ids": other,
        "label": bool(answer.is_good),
    }


def pair_ids(pair: Any) -> dict[str, Any]:
    """One of our pairs as a row of TRL's prepared data set."""
    (prompt, chosen), (_, rejected) = map(divided, (pair.chosen, pair.rejected))
    return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}


def divided(chat: Any) -> tuple[list[int], list[int]]:
    """Prompt and answer of a chat. TRL scores every token of an answer, so text that the template writes after its end
    is left out.
    """
    scored = chat.weights.nonzero()[0]
    return chat.ids[: scored[0]].tolist(), chat.ids[scored[0] : scored[-1] + 1].tolist()


def run_of(run: Any, steps: int, rows: list[dict[str, Any]], rates: list[float], folder: Path) -> dict[str, Any]:
    """Describe one of our runs for :func:`trainer_run`.

    Args:
        run: the planned run.
        steps: its number.
        rows: TRL's form of its rows, in the order of the steps.
        rates: learning rate of each step.
    """
    contract = run.plan.contract
    assert len(rates) == steps
    return {
        "base": run.inputs.base,
        "folder": str(folder),
        "seed": contract.exec.seed,
        "rank": contract.adapter.rank,
        "alpha": contract.adapter.alpha,
        "batch": contract.exec.batch_size,
        "rates": rates,
        "max_grad_norm": contract.exec.max_grad_norm,
        "weight_decay": contract.exec.weight_decay,
        "rows": rows,
    }


def trainer_run(work: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and KL of each step of a run with TRL's KTOTrainer, or loss and mean margin with its DPOTrainer, with peft
    and torch's AdamW, on rows in a given order.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    of_kto = "kto" in work
    config_type, trainer_type = (KTOConfig, KTOTrainer) if of_kto else (DPOConfig, DPOTrainer)
    losses: list[tuple[float, float]] = []

    class FedTrainer(trainer_type):  # type: ignore[misc, valid-type, unused-ignore]
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            loss = self._compute_loss(model, inputs, False)
            losses.append((loss.item(), self._metrics["train"]["kl" if of_kto else "rewards/margins"][-1]))
            return loss

    model = AutoModelForCausalLM.from_pretrained(work["base"], dtype=torch.float32).requires_grad_(False)
    torch.manual_seed(work["seed"])
    config = LoraConfig(r=work["rank"], lora_alpha=work["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=work["weight_decay"])
    rates = [*work["rates"], 0.0]
    settings = config_type(
        output_dir=work["folder"],
        per_device_train_batch_size=work["batch"],
        num_train_epochs=1,
        max_grad_norm=work["max_grad_norm"],
        precompute_ref_log_probs=True,
        train_sampling_strategy="sequential",
        gradient_checkpointing=False,
        max_length=None,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **work["kto" if of_kto else "dpo"],
    )
    trainer = FedTrainer(
        model,
        args=settings,
        train_dataset=Dataset.from_list(work["rows"]),
        processing_class=AutoTokenizer.from_pretrained(work["base"]),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])),
    )
    trainer.train()
    return losses


def main() -> None:
    import torch

    if sys.argv[1] == "run":
        work = Path(sys.argv[2])
        work.write_text(json.dumps({"losses": trainer_run(json.loads(work.read_bytes()))}))
        return
    made = pairs(torch)
    found = [[trls(pair, case["trl"]) for pair in made] for case in CASES]
    rated = [[trls_rated(made, case, kl) for kl in KLS] for case in KTO_CASES]
    Path(sys.argv[1]).write_text(json.dumps({"pairs": made, "found": found, "rated": rated}))


if __name__ == "__main__":
    main()
