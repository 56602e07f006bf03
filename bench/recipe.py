"""One QLoRA recipe for several trainers: same base, same encoded rows in the same steps, same rates, same initial adapter.

Our own trainer is run as the product runs it (``python -m worker.train plan.json run_dir``); a peer gets the rows that
our tokenisation made, in the order of our steps, and is run by ``bench/train_lanes.py`` in the peers' environment.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shared.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract import FineTuneContract
from shared.planner import DataFile, TrainingInputs, TrainingRun, plan_finetune, warmup_steps
from worker.training.data import read_data
from worker.training.model import load_tokenizer, read_config
from worker.training.order import Order
from worker.training.prepare import Row
from worker.training.schedule import learning_rate

ROOT = Path(__file__).resolve().parents[1]
UNTIMED_STEPS = 2
NEVER = 1_000_000
Chat = dict[str, Any]
EncodedRow = dict[str, list[int]]


@dataclass(frozen=True)
class Recipe:
    """What every trainer is told.

    Attributes:
        base: model folder.
        rows: ``{"input_ids", "labels"}`` of each row (label -100: not learnt), in the order of the steps.
        held_out: rows for the comparison of losses alone.
        rates: learning rate of each optimizer step.
        rows_per_batch: rows of a micro-batch, where a trainer counts in rows.
        device: ``cpu`` (fp32) or ``cuda`` (bf16).
    """

    base: str
    rows: list[EncodedRow]
    held_out: list[EncodedRow]
    rates: list[float]
    rows_per_batch: int = 8
    grad_accum: int = 2
    seq_len: int = 2048
    rank: int = 16
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 7
    device: str = "cpu"
    checkpointing: bool = False

    @property
    def rows_per_step(self) -> int:
        return self.rows_per_batch * self.grad_accum

    def tokens(self, first_step: int = 0) -> int:
        """Tokens of all steps from a 0-based one on, none of them padding."""
        return sum(len(row["input_ids"]) for row in self.rows[first_step * self.rows_per_step :])

    def targets(self, step: int) -> int:
        """Supervised positions of a 0-based step."""
        rows = self.rows[step * self.rows_per_step : (step + 1) * self.rows_per_step]
        return sum(label != -100 for row in rows for label in row["labels"][1:])


@dataclass
class Outcome:
    """What one trainer did.

    Attributes:
        tokens_per_second: useful tokens per second of the timed steps.
        tokens_per_cpu_second: the same by the CPU time of all threads, which other programs disturb less.
        losses: mean loss per supervised token of each step; empty where a step has other rows than ours.
        grad_norms: before clipping.
        peak_bytes: device memory on a GPU, resident set on a CPU.
        adapter: folder of the adapter.
        facts: whatever else the lane has to say.
    """

    tokens_per_second: float
    tokens_per_cpu_second: float
    losses: list[float]
    grad_norms: list[float]
    peak_bytes: int
    adapter: str
    facts: dict[str, Any] = field(default_factory=dict)


def plan_mens(
    base: Path, chats: list[Chat], held_out: list[Chat], folder: Path, **sections: dict[str, Any]
) -> TrainingRun:
    """Write the chats as data files, and plan the product's run over them.

    Args:
        base: model folder.
        held_out: the validation file. There must be one, because a split would also change the rows' order.
        folder: where the files are written.
        sections: what a section of the contract has beyond the recipe's defaults, e.g. ``exec={"batch_size": 4}``.
    """
    train, validation = write_chats(folder / "train.jsonl", chats), write_chats(folder / "held_out.jsonl", held_out)
    fields: dict[str, dict[str, Any]] = {
        "model": {"name": base.name},
        "data": {"train_file": train.file_id, "validation_file": validation.file_id},
        "adapter": {"rank": 16, "alpha": 32},
        "artifact": {"publish": False},
        "exec": {"epochs": 1, "seq_len": 2048, "batch_size": 8, "grad_accum": 2, "seed": 7, "checkpoint_every": NEVER},
    }
    for section, values in sections.items():
        fields[section] = fields.get(section, {}) | values
    entry = BaseModelEntry(name=base.name, source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    plan = plan_finetune(FineTuneContract.model_validate(fields), entry, train, validation, "bench")
    paths = [str(folder / name) for name in ("train.jsonl", "held_out.jsonl")]
    return TrainingRun(plan=plan, inputs=TrainingInputs(base=str(base), train=paths[0], validation=paths[1]))


def write_chats(path: Path, chats: list[Chat]) -> DataFile:
    """A JSONL file, described as the API describes an upload."""
    raw = "".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats).encode()
    path.write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    return DataFile(file_id=f"file-{path.stem}", sha256=digest, bytes=len(raw), rows=len(chats))


def recipe_of(run: TrainingRun, cache: Path, **more: Any) -> Recipe:
    """The recipe of a planned run: its rows as the product encodes them, in the order in which it takes them.

    Args:
        cache: folder for the encoded rows.
        more: fields of the recipe that no contract knows.
    """
    contract, exec_, base = run.plan.contract, run.plan.contract.exec, Path(run.inputs.base)
    data = read_data(run, load_tokenizer(base), read_config(base).vocab, cache)
    order = Order(contract, data.difficulties)
    total = order.total_steps
    warmup = warmup_steps(exec_.warmup_steps, total)
    return Recipe(
        base=run.inputs.base,
        rows=[plain(data.row(number)) for step in order.after(0) for number in step.rows],
        held_out=[plain(row) for row in data.validation],
        rates=[learning_rate(step, total, exec_.learning_rate, warmup) for step in range(total)],
        rows_per_batch=exec_.batch_size,
        grad_accum=exec_.grad_accum,
        seq_len=exec_.seq_len,
        rank=contract.adapter.rank,
        weight_decay=exec_.weight_decay,
        max_grad_norm=exec_.max_grad_norm,
        seed=exec_.seed,
        **more,
    )


def plain(row: Row) -> EncodedRow:
    """A row as other trainers take it."""
    ids = row.ids.tolist()
    learnt = (row.weights > 0).tolist()
    return {"input_ids": ids, "labels": [id_ if wanted else -100 for id_, wanted in zip(ids, learnt, strict=True)]}


class LaneFailed(Exception):
    """A lane's process ended with an error.

    Attributes:
        reason: its last line.
    """

    def __init__(self, output: str) -> None:
        super().__init__(output[-3000:])
        self.reason = (output.strip().splitlines() or ["no output"])[-1][:300]


def run_mens(
    run: TrainingRun, recipe: Recipe, folder: Path, threads: int, command: Sequence[str] = ("-m", "bench.clocked")
) -> Outcome:
    """Train with the product, and read its telemetry.

    Raises:
        LaneFailed: it ended with an error, or trained on other rows or at other rates than the recipe's.
    """
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(run.model_dump_json())
    execute([sys.executable, *command, str(folder / "plan.json"), str(folder)], threads)
    events = [json.loads(line) for line in (folder / "telemetry.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    told = [step["payload"] for step in steps]
    if [step["valid_tokens"] for step in told] != [recipe.targets(step) for step in range(len(told))]:
        raise LaneFailed("the product's steps have other rows than the peers'")
    if any(abs(step["learning_rate"] - rate) > 1e-12 for step, rate in zip(told, recipe.rates, strict=True)):
        raise LaneFailed("the product's learning rates are not the peers'")
    summary = json.loads((folder / "run_summary.json").read_text())
    start = next(event["payload"] for event in events if event["event"] == "train_start")
    usual, paused = gaps(events)
    first, last = steps[UNTIMED_STEPS - 1], steps[-1]
    tokens = recipe.tokens(UNTIMED_STEPS)
    cpu_seconds = told[-1].get("cpu_seconds", math.nan) - told[UNTIMED_STEPS - 1].get("cpu_seconds", math.nan)
    return Outcome(
        tokens_per_second=tokens / (last["ts_ms"] - first["ts_ms"] - paused) * 1e3,
        tokens_per_cpu_second=tokens / cpu_seconds,
        losses=[step["loss"] for step in told],
        grad_norms=[step["grad_norm"] for step in told],
        peak_bytes=summary["memory"]["peak_bytes"],
        adapter=str(folder / "adapter"),
        facts={
            "memory": summary["memory"],
            "budget": start.get("budget", {}),
            "step_seconds": usual / 1e3,
            "checkpoint_seconds": paused / 1e3,
        },
    )


def gaps(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Median milliseconds of a timed step, and milliseconds that checkpoints with their validation took."""
    steps, paused, last = [], 0.0, 0
    for event in (one for one in events if one["event"] in {"step", "checkpoint"}):
        if event["event"] == "checkpoint":
            paused += event["ts_ms"] - last
        elif event["payload"]["step"] > UNTIMED_STEPS:
            steps.append(event["ts_ms"] - last)
        last = event["ts_ms"]
    return statistics.median(steps), paused


def run_peer(
    python: Path, lane: str, recipe_path: Path, folder: Path, threads: int, script: str = "train_lanes.py"
) -> Outcome:
    """Train with a lane of a script in this folder.

    Raises:
        LaneFailed: it ended with an error.
    """
    folder.mkdir(parents=True)
    output = execute([str(python), str(ROOT / "bench" / script), lane, str(recipe_path), str(folder)], threads)
    return Outcome(**json.loads(output.splitlines()[-1]))


def evaluate(python: Path, recipe_path: Path, adapters: dict[str, str], threads: int) -> dict[str, float]:
    """Mean loss per supervised token of each adapter over training and held-out rows, all by the same code."""
    script = str(ROOT / "bench" / "train_lanes.py")
    command = [str(python), script, "evaluate", str(recipe_path), json.dumps(adapters)]
    losses: dict[str, float] = json.loads(execute(command, threads).splitlines()[-1])
    return losses


def write_recipe(recipe: Recipe, path: Path) -> Path:
    path.write_text(json.dumps(asdict(recipe)))
    return path


def execute(command: list[str], threads: int) -> str:
    """Standard output of a command, run offline in the checkout.

    Raises:
        LaneFailed: it ended with an error.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **quiet, "OMP_NUM_THREADS": str(threads)}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if run.returncode:
        raise LaneFailed(run.stdout[-500:] + run.stderr)
    return run.stdout
