"""Tiny base models, data files, plans and runs for the worker's tests; what is slow to make is made once per session."""

from __future__ import annotations

import hashlib
import json
import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: a second thread makes tiny matrices slower, much slower beside another process.
os.environ["OMP_NUM_THREADS"] = "1"

from shared.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.contract import FineTuneContract
from shared.db import Database
from shared.job import Job, Kind, Submission
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.planner import DataFile, TrainingInputs, TrainingRun, plan_finetune
from shared.registry import Registry
from shared.storage import Storage
from worker.run import Worker
from worker.settings import WorkerSettings

CORPUS = Path(__file__).parents[2] / "examples" / "base_corpus.jsonl"
BASE_STEPS = 30

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
    """Stands for `StopSignals`: a run in the test's own process hears no signals."""

    pause_requested: bool = False
    cancel_requested: bool = False


def write_rows(path: Path, rows: list[dict[str, Any]]) -> DataFile:
    """Write a JSONL file and describe it as the API does after an upload."""
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


@dataclass
class Lab:
    """A base model and how to plan and run on it."""

    entry: BaseModelEntry
    base: Path

    def plan_run(
        self,
        folder: Path,
        rows: list[dict[str, Any]] | None = None,
        validation: list[dict[str, Any]] | None = None,
        **sections: dict[str, Any],
    ) -> TrainingRun:
        """A planned run on small JSONL files in a folder."""
        train_file = write_rows(folder / "train.jsonl", ROWS if rows is None else rows)
        held_out = write_rows(folder / "validation.jsonl", validation) if validation else None
        contract = contract_for(self.entry.name, validation is not None, **sections)
        plan = plan_finetune(contract, self.entry, train_file, held_out, "tiny")
        inputs = TrainingInputs(
            base=str(self.base),
            train=str(folder / "train.jsonl"),
            validation=str(folder / "validation.jsonl") if validation else None,
        )
        return TrainingRun(plan=plan, inputs=inputs)

    def train(self, run: TrainingRun, run_dir: Path, resume: Path | None = None, stop: NeverStop | None = None) -> Path:
        """Train in this process; returns the run folder."""
        import torch

        from worker.train import train

        run_dir.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        train(run, run_dir, resume, stop or NeverStop())  # type: ignore[arg-type]
        return run_dir


def make_base(folder: Path, family: Any, steps: int) -> Lab:
    """Pretrain a base model and describe it for a catalogue."""
    from worker.pretrain import build_base

    build_base(folder, CORPUS, family=family, steps=steps)
    source = LocalSource(path=str(folder))
    return Lab(BaseModelEntry(name=folder.name, source=source, digests=digest_model_folder(folder)), folder)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The tiny Qwen3 that nearly all of these tests share."""
    return make_base(tmp_path_factory.mktemp("bases") / "tiny-qwen3", "qwen3", BASE_STEPS)


@pytest.fixture(scope="session")
def llama_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A model of another family, hardly trained."""
    return make_base(tmp_path_factory.mktemp("bases") / "tiny-llama", "llama", 3)


@pytest.fixture(scope="session")
def tiny_base(lab: Lab) -> Path:
    """Folder of the tiny Qwen3."""
    return lab.base


@pytest.fixture(scope="session")
def tokenizer(tiny_base: Path) -> Any:
    from worker.training.model import load_tokenizer

    return load_tokenizer(tiny_base)


@dataclass
class Finished:
    """A run that is done."""

    run: TrainingRun
    run_dir: Path


@pytest.fixture(scope="session")
def finished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run with validation and checkpoints, to be looked at and never changed."""
    folder = tmp_path_factory.mktemp("finished")
    run = lab.plan_run(
        folder,
        validation=ROWS[:2],
        exec={"epochs": 4, "checkpoint_every": 2},
        provenance={"base_family": "qwen3", "license_class": "apache-2.0"},
    )
    return Finished(run, lab.train(run, folder / "run"))


# -- jobs -------------------------------------------------------------------------------------------------------------


class SilentBell:
    """Stands for the doorbell: remembers whom it rang for."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    def ring(self, job_id: str) -> bool:
        self.rung.append(job_id)
        return True


@dataclass
class Shop:
    """An installation in a folder: a real ledger, storage, catalogue and one worker."""

    lab: Lab
    settings: WorkerSettings
    database: Database
    ledger: Ledger
    leases: LeaseLedger
    registry: Registry
    storage: Storage
    bell: SilentBell
    worker: Worker

    def submit(self, kind: Kind = Kind.FINETUNE, plan: dict[str, Any] | None = None) -> Job:
        """Queue a job."""
        submission = Submission(kind=kind, base_model="tiny-qwen3", name="tiny", contract={}, plan=plan or {})
        return self.ledger.submit(submission)[0]

    def submit_finetune(self, folder: Path, **sections: dict[str, Any]) -> tuple[Job, TrainingRun]:
        """Queue a fine-tune job whose data is in the storage."""
        run = self.lab.plan_run(folder, **sections)
        for path in (run.inputs.train, run.inputs.validation):
            if path:
                self.storage.put_file(Path(path))
        return self.submit(plan=run.plan.model_dump(mode="json")), run

    def second_worker(self) -> Worker:
        """Another worker on the same installation."""
        return replace(self.worker, name="second")

    def expire_lease(self, job_id: str) -> None:
        """Let the job's lease run out and sweep, as if its worker had been gone for long."""
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1 WHERE id = ?", (job_id,))
        self.leases.sweep()
        self.skip_backoff(job_id)

    def skip_backoff(self, job_id: str) -> None:
        """Make a job that waits for its next try ready now."""
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET not_before = NULL WHERE id = ?", (job_id,))

    def messages(self, job_id: str) -> list[str]:
        """Messages of a job's events, oldest first."""
        return [event.message for event in self.ledger.events(job_id)]


@pytest.fixture
def open_shop(lab: Lab, sqlite_template: Path, tmp_path: Path) -> Callable[..., Shop]:
    """Opens an installation in the test's folder; keywords are settings."""

    def build(**more: Any) -> Shop:
        home = tmp_path / "home"
        home.mkdir()
        (home / "mens.db").write_bytes(sqlite_template.read_bytes())
        fields = {"heartbeat_seconds": 0.1, "stop_grace_seconds": 5.0, "trainer_threads": 1, **more}
        settings = WorkerSettings(home=home, **fields)
        save_catalog(settings.catalog_path, Catalog(bases=[lab.entry]))
        database = Database(settings.database_url)
        leases = LeaseLedger(database, settings.lease_seconds)
        storage, bell = Storage(settings.storage_dir), SilentBell()
        registry = Registry(database)
        worker = Worker(settings, leases, registry, storage, bell, name="first")  # type: ignore[arg-type]
        return Shop(lab, settings, database, Ledger(database), leases, registry, storage, bell, worker)

    return build


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop()


@pytest.fixture
def fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module that stands for the engine, with `plan`, `run_dir` and `tell` at hand; returns its name."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{Path.cwd()}")
    head = (
        "import json, os, signal, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "plan, run_dir = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "def tell(event, **payload):\n"
        "    with (run_dir / 'telemetry.jsonl').open('a') as file:\n"
        "        file.write(json.dumps({'ts_ms': 1, 'event': event, 'payload': payload}) + '\\n')\n"
    )

    def write(code: str) -> str:
        name = f"fake_engine_{len(list(folder.glob('*.py')))}"
        (folder / f"{name}.py").write_text(head + textwrap.dedent(code))
        return name

    return write


ENGINE_IMPORT = re.compile(
    r"^(import torch$|import worker\.train|from worker\.(train|pretrain|merge|score|dequantize) "
    r"|from worker\.training\.(adapter|batches|budget|checkpoint|guarantee|head|loss|memory|model|optimizer|trainer) )",
    re.MULTILINE,
)
"""Test modules that load torch."""
ENGINE_FIXTURES = {"lab", "llama_lab", "tiny_base", "tokenizer", "finished"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run that leaves the engine out does not load torch to find out which tests that are."""
    if "engine" not in config.option.markexpr or "not" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if _loads_torch(collection_path) else None


@cache
def _loads_torch(path: Path) -> bool:
    return bool(ENGINE_IMPORT.search(path.read_text()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that build or train a model, or compute with torch, are not part of the unit tier."""
    for item in items:
        if Path(__file__).parent in item.path.parents and (
            ENGINE_FIXTURES & set(getattr(item, "fixturenames", ())) or _loads_torch(item.path)
        ):
            item.add_marker(pytest.mark.engine)
