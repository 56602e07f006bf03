"""Tiny base models, finished runs and installations for the worker's tests; slow ones are made once per session."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: a second thread makes tiny matrices slower, and much slower next to another process.
os.environ["OMP_NUM_THREADS"] = "1"
# As the trainer does by itself: MKL reads it once, at the first product of whichever test comes first.
os.environ["MKL_CBWR"] = "AUTO"
os.environ["MKL_DYNAMIC"] = "FALSE"

from shared.artifacts.folder_storage import FolderStorage
from shared.base_models.catalog import Catalog, save_catalog
from shared.contract.plan import ExecutionPlan, TrainingRun
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job, Kind, Submission
from tests.support.doubles import FakeJobQueue
from tests.support.training_runs import ROWS, TinyBase, pretrain_base
from worker.jobs.runner import Worker
from worker.settings import WorkerSettings

HERE = Path(__file__).parent

# -- tests that load torch --------------------------------------------------------------------------------------------

TORCH_PLACES = {
    HERE / place
    for place in (
        "bases",
        "jobs/test_merge.py",
        "test_dequantize.py",
        "test_exported_adapter.py",
        "test_full_disk.py",
        "test_libraries.py",
        "test_merge.py",
        "test_parity.py",
        "test_pretrain.py",
        "test_imported_peft.py",
        "test_score.py",
        "test_torchrun.py",
        "test_train.py",
        "merging",
        "test_train_process.py",
        "training/data/test_batches.py",
        "training/data/test_dataset.py",
        "training/data/test_device_copy.py",
        "training/data/test_tokenizers_agree.py",
        "training/model",
        "training/preference",
        "training/reporting/test_model_card.py",
        "training/reporting/test_report.py",
        "training/self_evaluation",
        "training/test_adapter.py",
        "training/test_checkpoint.py",
        "training/test_continue.py",
        "training/test_distributed.py",
        "training/test_full_precision.py",
        "training/test_loss.py",
        "training/test_method.py",
        "training/test_optimizer.py",
        "training/test_probes.py",
        "training/test_reproducibility.py",
        "training/test_resume.py",
        "training/test_several_processes.py",
    )
}
"""Folders and files whose tests load torch when they are imported: `test_torch_places.py` checks that no other does."""
TORCH_FIXTURES = {"tiny", "tiny_llama"}
"""Fixtures that load torch; a test that gets one of them, or a fixture made from one, needs torch wherever it stands."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run that leaves torch out imports none of the modules that would load it: that takes seconds in each process.

    Any other loads the libraries as the worker's programs do, which is seconds faster than as the modules would.
    """
    if collection_path not in TORCH_PLACES:
        return None
    if "not" in config.option.markexpr and "torch" in config.option.markexpr:
        return True
    import worker.libraries  # noqa: F401

    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that load torch, so that the unit tier excludes them."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        if TORCH_PLACES & {item.path, *item.path.parents} or TORCH_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.torch)


# -- training runs ----------------------------------------------------------------------------------------------------

SAMPLE_PLACES = {HERE / place for place in ("jobs/test_finetune.py", "training/self_evaluation")}
"""Folders and files whose runs make sample answers."""


@pytest.fixture(autouse=True, scope="module")
def no_sample_answers(request: pytest.FixtureRequest) -> Iterator[None]:
    """They do not belong to a run's result, and take two thirds of a tiny run's time."""
    with pytest.MonkeyPatch.context() as patch:
        if not SAMPLE_PLACES & {request.path, *request.path.parents}:
            patch.setenv("MENS_SAMPLE_ANSWERS", "0")
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyBase:
    """The tiny Qwen3 that nearly all of these tests share."""
    return pretrain_base(tmp_path_factory.mktemp("bases") / "tiny-qwen3", "qwen3", steps=30)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyBase:
    """A model of another family, hardly trained."""
    return pretrain_base(tmp_path_factory.mktemp("bases") / "tiny-llama", "llama", steps=3)


@pytest.fixture(scope="session")
def tiny_base(tiny: TinyBase) -> Path:
    """Folder of the tiny Qwen3."""
    return tiny.base


@pytest.fixture(scope="session")
def tokenizer(tiny_base: Path) -> Any:
    from worker.training.model.load import load_tokenizer

    return load_tokenizer(tiny_base)


@dataclass
class Finished:
    """A finished run."""

    run: TrainingRun
    run_dir: Path


@pytest.fixture(scope="session")
def finished(tiny: TinyBase, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run with validation and checkpoints; tests read it and never change it."""
    folder = tmp_path_factory.mktemp("finished")
    run = tiny.plan_run(
        folder,
        validation=ROWS[:2],
        exec={"epochs": 4, "checkpoint_every": 2},
        provenance={"base_family": "qwen3", "license_class": "apache-2.0"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MENS_SAMPLE_ANSWERS", raising=False)
        return Finished(run, tiny.train(run, folder / "run"))


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass
class WorkerInstallation:
    """An installation in a folder: a real database, storage, catalogue and one worker."""

    tiny: TinyBase
    settings: WorkerSettings
    database: Database
    jobs: Jobs
    leases: Leases
    files: Files
    storage: FolderStorage
    job_queue: FakeJobQueue
    worker: Worker

    def submit(self, kind: Kind = Kind.FINETUNE, plan: dict[str, Any] | None = None) -> Job:
        """Queue a job."""
        submission = Submission(kind=kind, base_model="tiny-qwen3", name="tiny", contract={}, plan=plan or {})
        return self.jobs.submit(submission)[0]

    def submit_finetune(
        self,
        folder: Path,
        *,
        as_stored: Callable[[ExecutionPlan], dict[str, Any]] = lambda plan: plan.model_dump(mode="json"),
        **sections: Any,
    ) -> tuple[Job, TrainingRun]:
        """Queue a fine-tune job whose data is in the storage.

        Args:
            as_stored: the plan as the release that accepted the job has written it.
        """
        run = self.tiny.plan_run(folder, **sections)
        for path in (run.inputs.train, run.inputs.validation):
            if path:
                self.storage.put_file(Path(path))
        stored = as_stored(run.plan)
        return self.submit(plan=stored), run.model_copy(update={"plan": ExecutionPlan.model_validate(stored)})

    def second_worker(self) -> Worker:
        """Another worker on the same installation."""
        return replace(self.worker, name="second")

    def expire_lease(self, job_id: str) -> None:
        """Let the job's lease expire and sweep, as if its worker had been silent for long.

        If the worker is not silent, a heartbeat between the two extends the lease again.
        """
        while self.jobs.get(job_id).state is JobState.RUNNING:
            with self.database.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1 WHERE id = ?", (job_id,))
            self.leases.sweep()
        self.skip_backoff(job_id)

    def skip_backoff(self, job_id: str) -> None:
        """Make a job that waits for its next attempt ready now."""
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET not_before = NULL WHERE id = ?", (job_id,))

    def messages(self, job_id: str) -> list[str]:
        """Messages of a job's events, oldest first."""
        return [event.message for event in self.jobs.events(job_id)]


@pytest.fixture
def open_installation(tiny: TinyBase, sqlite_template: Path, tmp_path: Path) -> Callable[..., WorkerInstallation]:
    """Opens an installation in the test's folder; keywords are settings."""

    def build(**more: Any) -> WorkerInstallation:
        home = tmp_path / "home"
        home.mkdir()
        (home / "mens.db").write_bytes(sqlite_template.read_bytes())
        fields = {"heartbeat_seconds": 0.1, "stop_grace_seconds": 5.0, "trainer_threads": 1, **more}
        settings = WorkerSettings(home=home, **fields)
        save_catalog(settings.catalog_path, Catalog(bases=[tiny.entry]))
        database = Database(settings.database_url)
        leases = Leases(database, settings.lease_seconds)
        storage, job_queue = FolderStorage(settings.storage_dir), FakeJobQueue()
        files = Files(database)
        worker = Worker(settings, leases, files, Uploads(database), storage, job_queue, name="first")
        return WorkerInstallation(tiny, settings, database, Jobs(database), leases, files, storage, job_queue, worker)

    return build


@pytest.fixture
def installation(open_installation: Callable[..., WorkerInstallation]) -> WorkerInstallation:
    return open_installation()


@pytest.fixture
def fake_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module that replaces the trainer, with `plan`, `run_dir` and `emit` at hand; returns its name."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{Path.cwd()}")
    head = (
        "import json, os, signal, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "plan, run_dir = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "def emit(event, **payload):\n"
        "    with (run_dir / 'telemetry.jsonl').open('a') as file:\n"
        "        file.write(json.dumps({'ts_ms': 1, 'event': event, 'payload': payload}) + '\\n')\n"
    )

    def write(code: str) -> str:
        name = f"fake_trainer_{len(list(folder.glob('*.py')))}"
        (folder / f"{name}.py").write_text(head + textwrap.dedent(code))
        return name

    return write
