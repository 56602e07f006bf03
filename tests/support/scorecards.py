"""Scorecards for tests: specs with two sampled conditions, and events as a run would write them."""

from __future__ import annotations

from typing import Any

from shared.gates.evidence import PromotionCycle
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ScorecardSpec


def scorecard_task(number: int, **fields: Any) -> dict[str, Any]:
    """A task whose prompt contains its number."""
    return {
        "id": f"task_{number}",
        "prompt": f"Write task {number}.",
        "expected_contains": ["def"],
        "semantic_expected_contains": ["return"],
        **fields,
    }


def scorecard_condition(name: str, backend: str = "qlora", **fields: Any) -> dict[str, Any]:
    """A sampled condition."""
    return {
        "id": name,
        "label": name,
        "mode": "http_generate",
        "backend": backend,
        "model_id": name,
        "adapter_revision": f"{name}@{'0' * 64}",
        "server_url": "http://127.0.0.1:8000",
        "training_seed": 1,
        **fields,
    }


def scorecard_spec(tasks: int = 40, **fields: Any) -> dict[str, Any]:
    """A spec with the conditions `new` and `old`."""
    return {
        "schema_version": 1,
        "prompt_pack_version": "pack-v1",
        "max_retries": 2,
        "conditions": [scorecard_condition("new"), scorecard_condition("old")],
        "tasks": [scorecard_task(number) for number in range(tasks)],
        **fields,
    }


def scorecard_event(
    condition: str, task: str, attempts: int = 1, is_valid: bool = True, **fields: Any
) -> ScorecardEvent:
    """An event that is valid after this number of attempts, or never."""
    values: dict[str, Any] = {
        "condition_id": condition,
        "backend": "qlora",
        "task_id": task,
        "attempts": attempts,
        "compile_pass_1": is_valid and attempts == 1,
        "compile_pass_n": is_valid,
        "repair_depth": attempts - 1 if is_valid else None,
        "canonical_pass": is_valid,
        "voxelized_strictness": 1.0,
        "task_success": is_valid,
        "semantic_task_success": is_valid,
        "hir_error_count": 0 if is_valid else 1,
        "latency_ms": 100.0 * attempts,
        "time_to_first_valid_ms": 100.0 * attempts if is_valid else None,
        "repair_stalled": False,
        "tokens_in": 10,
        "tokens_out": 20,
        "placeholder_marker_hits": 0,
        "trivial_placeholder_output": False,
        "construct_richness_score": 0.5,
        "anti_stub_pass": is_valid,
    }
    return ScorecardEvent.model_validate({**values, **fields})


def promotion_cycle(seed: int = 1, tasks: int = 40, gain: float = 0.4, **fields: Any) -> PromotionCycle:
    """A cycle in which `new` solves all tasks that `old` solves, and a further share of all tasks."""
    solved = round(tasks * (0.9 - gain))
    spec = scorecard_spec(tasks)
    for condition in spec["conditions"]:
        condition["training_seed"] = seed
        condition["adapter_revision"] = f"{condition['id']}@{seed:064d}"
    names = [task["id"] for task in spec["tasks"]]
    events = [
        *(scorecard_event("new", name, is_valid=number < round(tasks * 0.9)) for number, name in enumerate(names)),
        *(scorecard_event("old", name, is_valid=number < solved) for number, name in enumerate(names)),
    ]
    return PromotionCycle(**{
        "spec": ScorecardSpec.model_validate(spec), "candidate": "new", "incumbent": "old", "events": events, **fields,
    })  # fmt: skip
