"""How often the worker's preflight reads the data files, validates the contract and checks the refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.contract.plan import DataFile, ExecutionPlan, TrainingRun, plan_finetune
from shared.database.jobs import TrainingRate
from shared.hashing import digest_file
from tests.support.builders import contract
from tests.support.counters import ALIAS, counting
from tests.support.tiny_base import write_base
from worker.jobs.finetune import check_inputs, locate_inputs
from worker.settings import WorkerSettings

FILES = ("train", "validation", "replay")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "tiny")


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "storage")


@pytest.fixture
def plan(base: Path, storage: FolderStorage, tmp_path: Path) -> ExecutionPlan:
    """A plan as the worker reads it from the job's row; its data is in the storage."""
    files = {}
    for name in FILES:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"{name} {n}", "response": "yes"}) + "\n" for n in range(30)))
        files[name] = DataFile(file_id=name, sha256=digest_file(path), bytes=path.stat().st_size, rows=30)
        storage.put_file(path)
    data = {"train_file": "train", "validation_file": "validation", "replay_file": "replay"}
    made = plan_finetune(
        contract(data=data, artifact={"alias": ALIAS, "publish": False}),
        BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base)),
        files["train"],
        files["validation"],
        "other",
        replay=files["replay"],
    )
    return ExecutionPlan.model_validate(made.model_dump(mode="json"))


def test_preflight_reads_every_file_once(
    base: Path, storage: FolderStorage, plan: ExecutionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    attempt = SimpleNamespace(
        storage=storage,
        settings=WorkerSettings(home=tmp_path),
        locate_base=lambda _: base,
        run_dir=tmp_path,
        report=lambda **report: reports.append(report),
        training_rate=lambda _: TrainingRate(1000.0, "ftjob-7", 12.5),
    )
    counts = counting(monkeypatch)
    with locate_inputs(attempt, plan) as inputs:
        check_inputs(attempt, TrainingRun(plan=plan, inputs=inputs))
    assert {name: counts.reads(Path(getattr(inputs, name))) for name in FILES} == dict.fromkeys(FILES, 1)
    time = reports[-1]["preflight"]["estimate"]["time"]
    assert (time["basis"], time["other_seconds"]) == ("measured", 12.5)
    assert "by ftjob-7" in time["reason"]
    assert (counts.validations, counts.refusal_runs) == (1, 2)  # the stored plan
