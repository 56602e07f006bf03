"""Lines that describe a job: its method, rows and parent."""

from __future__ import annotations

from typing import Any

import pytest

from cli.commands.jobs.descriptions import describe_plan


def job(**contract: Any) -> dict[str, Any]:
    exec_ = {"batch_size": 2, "grad_accum": 1, "epochs": 1, "learning_rate": 0.0004}
    plan = {"train": {"rows": 10}, "validation_rows": 2, "optimizer_steps": 4}
    return {"contract": {"exec": exec_, **contract}, "plan": plan}


@pytest.mark.parametrize(
    ("contract", "begin", "end"),
    [
        ({}, "8 rows (2 of 10 are held out for validation), 1 epoch, 4 steps of 2 rows", "learning rate 0.0004"),
        (
            {"method": {"type": "supervised"}, "preference": {"loss": "sigmoid", "beta": None}},
            "8 rows (2 of 10",
            "learning rate 0.0004",
        ),
        (
            {
                "method": {"type": "dpo"},
                "preference": {"loss": "sigmoid_norm", "beta": None},
                "adapter": {"continue_from": f"cafe@{'a1' * 32}"},
            },
            "dpo (sigmoid_norm, beta 1): 8 pairs (2 of 10",
            "4 steps of 2 pairs, learning rate 0.0004, continues cafe@a1a1a1a1a1a1",
        ),
        (
            {
                "method": {"type": "kto"},
                "preference": {"loss": "kto", "beta": 0.25},
                "adapter": {"continue_from": None},
            },
            "kto (beta 0.25): 8 rated answers (2 of 10",
            "learning rate 0.0004",
        ),
    ],
)
def test_plan_names_method_rows_and_parent(contract: dict[str, Any], begin: str, end: str) -> None:
    described = describe_plan(job(**contract))
    assert described.startswith(begin)
    assert described.endswith(end)
