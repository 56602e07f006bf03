"""Fields of a `step` event that follow from its report, the fields that may hold strings, and the names of metrics in
trackers. Pure.

Training content cannot leak: only a few named fields accept strings, and only identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from worker.run_folder import PREFERENCE_METRICS
from worker.training.metrics import StepReport, finite

SKIP_REASONS = ("no_supervised_positions", "short_seq", "token_id_oob", "template_refused", "curriculum")
TEXT_FIELDS = frozenset(
    {
        "activity",
        "base_model",
        "causes",
        "checkpoint",
        "code",
        "component",
        "compute_device",
        "base_precision",
        "contract_digest",
        "device_name",
        "error",
        "execution_kernel",
        "final_adapter",
        "parent",
        "folder",
        "guarantee",
        "layout",
        "output",
        "phase",
        "plan_digest",
        "recompute",
        "reference_digest",
        "requested_device_kind",
        "run_id",
        "source",
        "tokenizer",
        "tracker",
        "train_file",
        "validation_file",
    }
)
"""The only fields that may hold strings: ids, digests, folder names, and words from a fixed list."""
_IDENTIFIER = re.compile(r"[\w.@:/+=-]{0,200}", re.ASCII)
TRACKED = {
    "loss": "train/loss",
    "loss_ema": "train/loss_ema",
    "token_accuracy": "train/token_accuracy",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "epoch": "train/epoch",
    "tokens_per_sec": "speed/tokens_per_sec",
    "supervised_tokens_per_sec": "speed/supervised_tokens_per_sec",
    "steps_per_sec_ema": "speed/steps_per_sec",
    "mfu": "speed/mfu",
    "peak_memory_bytes": "memory/peak_bytes",
    "val_loss": "valid/loss",
    "val_token_accuracy": "valid/token_accuracy",
    **{name: f"train/{name}" for name in PREFERENCE_METRICS},
}
"""Field of an event → name of the scalar that trackers get."""


def refuse_text(payload: Mapping[str, Any]) -> None:
    """Refuse a payload that may contain training text.

    Raises:
        ValueError: a field that may not hold strings holds one, or a string is not an identifier (e.g. it contains
            white space).
    """
    for field, value in payload.items():
        if isinstance(value, Mapping):
            refuse_text(value)
            continue
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and not (field in TEXT_FIELDS and _IDENTIFIER.fullmatch(text)):
                raise ValueError(f"telemetry does not accept this value in {field}")


def identifier(text: str) -> str:
    """Convert a name, such as a device's, for telemetry: every run of other characters becomes a dash."""
    return re.sub(r"[^\w.@:/+=-]+", "-", text, flags=re.ASCII)[:200]


def _place(report: StepReport, total_steps: int) -> dict[str, Any]:
    return {
        "epoch": report.epoch,
        "step": report.step,
        "optimizer_step": report.step,
        "total_steps": total_steps,
        "micro_batches": report.micro_batches,
        "rows": report.rows,
    }


def _score(report: StepReport) -> dict[str, Any]:
    return {
        "loss": finite(report.score.loss),
        "token_accuracy": report.score.accuracy,
        "lr": report.rate,
        "learning_rate": report.rate,
        "grad_norm": finite(report.norm),
    }


def _tokens(report: StepReport) -> dict[str, Any]:
    return {
        "tokens": report.tokens,
        "valid_tokens": report.score.targets,
        "theoretical_tokens": report.positions,
        "supervised_ratio_pct": 100 * report.score.targets / max(report.tokens, 1),
        "token_budget": report.token_budget,
        "trajectory_weighted_pairs": report.weighted_rows,
        "syntax_weight_sum": report.syntax_weight_sum,
    }


def step_payload(report: StepReport, total_steps: int) -> dict[str, Any]:
    """Return the fields of a step event that follow from the report alone."""
    extra = {name: finite(value) for name, value in report.extra.items()}
    return {**_place(report, total_steps), **_score(report), **_tokens(report), **extra}
