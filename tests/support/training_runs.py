"""Training runs on a tiny base model: its rows, contracts and plans, and the trainer in the test's own process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.contracts import FineTuneContract
from shared.contract.parent import PlannedParent
from shared.contract.plan import DataFile, TrainingInputs, TrainingRun, plan_finetune
from shared.preflight.activations import Recompute
from shared.preflight.parents import planned_parent

CORPUS = Path(__file__).parents[2] / "examples" / "base_corpus.jsonl"

ROWS: list[dict[str, Any]] = [
    {"prompt": "What is a bug?", "response": "A mistake in a program."},
    {"prompt": "What is a test?", "response": "It runs code and compares the result."},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a function?"},
            {"role": "assistant", "content": "It takes values."},
            {"role": "user", "content": "And then?"},
            {"role": "assistant", "content": "It returns a result."},
        ]
    },
    {"prompt": "What is a name?", "response": "A word for a value."},
    {"prompt": "What is a loop?", "response": "Work that is done again and again until it is done."},
    {"prompt": "What is a file?", "response": "Bytes with a name."},
]


@dataclass
class NeverStop:
    """Replaces `StopSignals`, because a run in the test's own process gets no signals."""

    pause_requested: bool = False
    cancel_requested: bool = False


class PauseAfter:
    """Replaces `StopSignals`: requests a pause after it was read this number of times; a run reads it once per step."""

    cancel_requested = False

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def pause_requested(self) -> bool:
        self._left -= 1
        return self._left <= 0


class CancelAfter:
    """As above, but requests a cancel."""

    pause_requested = False

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def cancel_requested(self) -> bool:
        self._left -= 1
        return self._left <= 0


@contextmanager
def recomputing(level: Recompute) -> Iterator[None]:
    """Make every run recompute this much, whatever the memory."""
    import worker.training.trainer

    choose: Any = vars(worker.training.trainer)["choose_budget"]

    def chosen(*arguments: Any, **named: Any) -> Any:
        return replace(choose(*arguments, **named), recompute=level)

    with patch.object(worker.training.trainer, "choose_budget", chosen):
        yield


def write_rows(path: Path, rows: list[dict[str, Any]]) -> DataFile:
    """Write a JSONL file, and describe it as the API does after an upload."""
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    return DataFile(file_id=f"file-{path.stem}", sha256=digest, bytes=len(raw), rows=len(rows))


def contract_for(base: str, validation: bool = False, **sections: dict[str, Any]) -> FineTuneContract:
    """A contract of a few quick steps; each keyword adds to one section."""
    fields: dict[str, dict[str, Any]] = {
        "model": {"name": base},
        "data": {"train_file": "file-train", "validation_split_ratio": 0.0},
        "adapter": {"rank": 4, "alpha": 8},
        "exec": {"epochs": 2, "batch_size": 2, "grad_accum": 1, "learning_rate": 0.01, "seed": 7, "warmup_steps": 0},
        "artifact": {"publish": False},
    }
    if validation:
        fields["data"]["validation_file"] = "file-validation"
    for section, values in sections.items():
        fields[section] = {**fields.get(section, {}), **values}
    return FineTuneContract.model_validate(fields)


def parent_in(folder: Path) -> PlannedParent:
    """The parent, read from an adapter's folder."""
    return planned_parent(AdapterManifest.model_validate_json((folder / MANIFEST_NAME).read_bytes()))


@dataclass
class TinyBase:
    """A base model that was pretrained in seconds, with functions to plan and run trainings on it."""

    entry: BaseModelEntry
    base: Path

    def plan_run(
        self,
        folder: Path,
        rows: list[dict[str, Any]] | None = None,
        validation: list[dict[str, Any]] | None = None,
        parent: Path | None = None,
        replay: list[dict[str, Any]] | None = None,
        **sections: dict[str, Any],
    ) -> TrainingRun:
        """A planned run on small JSONL files in a folder.

        Args:
            parent: folder of the adapter that it continues from.
            replay: rows that are mixed into each epoch.
        """
        start = parent_in(parent) if parent else None
        if start:
            sections["adapter"] = {"continue_from": start.id, **sections.get("adapter", {})}
        train_file = write_rows(folder / "train.jsonl", ROWS if rows is None else rows)
        held_out = write_rows(folder / "validation.jsonl", validation) if validation else None
        replayed = write_rows(folder / "replay.jsonl", replay) if replay else None
        contract = contract_for(self.entry.name, validation is not None, **sections)
        plan = plan_finetune(contract, self.entry, train_file, held_out, "tiny", parent=start, replay=replayed)
        inputs = TrainingInputs(
            base=str(self.base),
            train=str(folder / "train.jsonl"),
            validation=str(folder / "validation.jsonl") if validation else None,
            parent=str(parent) if parent else None,
            replay=str(folder / "replay.jsonl") if replay else None,
        )
        return TrainingRun(plan=plan, inputs=inputs)

    def train(self, run: TrainingRun, run_dir: Path, resume: Path | None = None, stop: Any = None, **more: Any) -> Path:
        """Train in this process; return the run folder.

        Args:
            stop: in place of the worker's signals; never stops when None.
            more: keywords of `worker.train.train`.
        """
        import torch

        from worker.train import train

        run_dir.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        signals: Any = stop or NeverStop()
        train(run, run_dir, resume, signals, **more)
        return run_dir


def pretrain_base(folder: Path, family: Any, steps: int) -> TinyBase:
    """Pretrain a base model and describe it for a catalogue."""
    from worker.pretrain import build_base

    build_base(folder, CORPUS, family=family, steps=steps)
    source = LocalSource(path=str(folder))
    return TinyBase(BaseModelEntry(name=folder.name, source=source, digests=digest_model_folder(folder)), folder)
