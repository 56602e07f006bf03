"""The memory limit of the stage that runs out of memory: the longest row fits, the rows of a step together do not."""

from __future__ import annotations

import pytest

from shared.base_models.config import parse_model_config
from shared.contract.contracts import FineTuneContract
from shared.preflight.estimate import vram_parts
from shared.preflight.types import Configuration

pytestmark = pytest.mark.torch
TOTAL = 80 * 10**9


def test_limit_lies_between_the_longest_row_and_the_planned_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from bench.acceptance.short_memory import short_budget
    from bench.training.counted_model import config_of
    from bench.training.shapes import SHAPES

    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (TOTAL, TOTAL))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, _: fractions.append(part))
    config = parse_model_config(config_of(SHAPES["0.6B"]))
    sections = {"model": {"hf_repo": "made"}, "data": {"train_file": "file-made"}}
    exec_ = {"batch_size": 4, "grad_accum": 4, "seq_len": 2048}
    contract = FineTuneContract.model_validate({**sections, "exec": exec_})
    budget = short_budget(contract, config, torch.device("cuda"))

    def needed(tokens: int) -> int:
        asked = Configuration(batch_size=1, grad_accum=1, seq_len=tokens, recompute=budget.recompute)
        found = vram_parts(contract, config, asked)
        return found.total - found.runtime

    assert needed(2048) < fractions[0] * TOTAL < needed(4096)
    assert budget.tokens >= 16 * 441, "the mean length of the bench's rows"
    assert not budget.cache_dequantised
