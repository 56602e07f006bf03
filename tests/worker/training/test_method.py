"""A second training method in the unchanged trainer: preference tuning by DPO, with the base as its reference."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch.nn.functional import softplus
from transformers import PreTrainedTokenizerBase

from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, verify_adapter
from shared.contract.plan import TrainingRun
from worker.run_folder import ADAPTER_FOLDER, SUMMARY_NAME, TELEMETRY_NAME, read_json
from worker.training.checkpoint import list_checkpoints
from worker.training.data.batches import MicroBatch, empty_batch, pack_rows
from worker.training.data.dataset import Data, read_data
from worker.training.data.prepared import Row
from worker.training.method import BatchLoss, Method
from worker.training.supervised import SupervisedMethod


@dataclass(frozen=True)
class Pair:
    """An answer that is preferred to another."""

    chosen: Row
    rejected: Row

    weight = 1.0
    weight_sum = 1.0
    """The loss is a mean over pairs."""
    is_wanted = True

    @property
    def lengths(self) -> tuple[int, ...]:
        return (len(self.chosen.ids), len(self.rejected.ids))

    @property
    def answer(self) -> Row:
        return self.chosen

    def unweighted(self) -> Pair:
        return self


@dataclass(frozen=True)
class PairBatch:
    """One pair."""

    chosen: MicroBatch
    rejected: MicroBatch

    weight_sum = 1.0
    target_count = 1

    @property
    def size(self) -> int:
        return self.chosen.size + self.rejected.size


class PairByPair(Method[Pair, PairBatch]):
    """DPO (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7); the reference is the base without the adapter.

    The rows' file holds chosen and rejected answers in turn.
    """

    beta = 0.5

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Pair]:
        data = read_data(run, tokenizer, vocab, cache)
        pairs = [Pair(*data.rows[at : at + 2]) for at in range(0, len(data.rows), 2)]
        numbers = data.training[data.training < len(pairs)]
        return Data(
            rows=pairs,
            training=numbers,
            difficulties=data.difficulties[: len(pairs)],
            validation=pairs[:1],
            replay=[],
            probe_rows=[pair.chosen for pair in pairs],
            report=data.report,
            validation_report=None,
            key=data.key,
        )

    def micro_batches(
        self, rows: Sequence[Pair], token_budget: int, *, pad_token: int, packed: bool
    ) -> list[PairBatch]:
        assert packed
        return [PairBatch(pack_rows([pair.chosen]), pack_rows([pair.rejected])) for pair in rows]

    def empty_batch(self) -> PairBatch:
        return PairBatch(empty_batch(), empty_batch())

    def loss(self, model: PeftModel, batch: PairBatch, device: torch.device, divisor: float = 1.0) -> BatchLoss:
        with torch.no_grad(), model.disable_adapter():
            reference = self.margin(model, batch, device)
        shift = self.beta * (self.margin(model, batch, device) - reference)
        return BatchLoss(softplus(-shift) / divisor, (shift > 0).float())

    def margin(self, model: PeftModel, batch: PairBatch, device: torch.device) -> torch.Tensor:
        """Log-probability of the chosen answer less that of the rejected one, in nats."""
        chosen, rejected = (SupervisedMethod().loss(model, one, device)[0] for one in (batch.chosen, batch.rejected))
        return rejected - chosen


PAIRS = [
    {"prompt": "What is a bug?", "response": "A mistake in a program."},
    {"prompt": "What is a bug?", "response": "Bytes with a name."},
    {"prompt": "What is a file?", "response": "Bytes with a name."},
    {"prompt": "What is a file?", "response": "A mistake in a program."},
]


@pytest.fixture(scope="module")
def preferred(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preference")
    run = tiny.plan_run(folder, PAIRS, exec={"epochs": 6, "batch_size": 2, "checkpoint_every": 2})
    return run, tiny.train(run, folder / "run", method=PairByPair())


def told(run_dir: Path, event: str) -> list[dict[str, float]]:
    lines = map(json.loads, (run_dir / TELEMETRY_NAME).read_text().splitlines())
    return [line["payload"] for line in lines if line["event"] == event]


def manifest_of(run_dir: Path) -> AdapterManifest:
    return AdapterManifest.model_validate_json((run_dir / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())


def test_another_method_learns(preferred):
    _, run_dir = preferred
    losses = [step["loss"] for step in told(run_dir, "step")]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4), "an adapter that was not trained prefers as the base does"
    assert losses[-1] < losses[0] / 2


def test_another_method_has_validation_reports_and_a_verified_adapter(preferred):
    _, run_dir = preferred
    scores = told(run_dir, "validation")
    assert scores[-1]["val_loss"] < scores[0]["val_loss"]
    assert read_json(run_dir / SUMMARY_NAME)["optimizer_step_count"] == len(told(run_dir, "step"))
    verify_adapter(run_dir / ADAPTER_FOLDER, manifest_of(run_dir))


def test_another_method_resumes_bit_exact(tiny, preferred, tmp_path):
    run, whole = preferred
    resumed = tiny.train(run, tmp_path / "run", resume=list_checkpoints(whole)[0], method=PairByPair())
    expected, actual = (manifest_of(folder) for folder in (whole, resumed))
    assert actual.files == expected.files
