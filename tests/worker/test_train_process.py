"""The trainer as a process: signals, exit codes, error files, and the same bytes as the function."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.errors import Code
from shared.hashing import digest_file
from tests.support.training_runs import ROWS
from worker.child_runtime import EXIT_CANCELLED, EXIT_FAILED, EXIT_PAUSED
from worker.run_folder import ADAPTER_FOLDER, ERROR_NAME, PLAN_NAME, TELEMETRY_NAME, list_checkpoints, read_json

ENGINE_SECONDS = 180


def steps_done(run_dir: Path) -> list[int]:
    lines = [json.loads(line) for line in (run_dir / TELEMETRY_NAME).read_text().splitlines()]
    return [line["payload"]["step"] for line in lines if line["event"] == "step"]


def adapter_digests(run_dir: Path) -> list[str]:
    return [digest_file(run_dir / ADAPTER_FOLDER / name) for name in (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME)]


def start(run, run_dir: Path, **variables: str) -> subprocess.Popen:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / PLAN_NAME).write_text(run.model_dump_json())
    command = [sys.executable, "-m", "worker.train", str(run_dir / PLAN_NAME), str(run_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    for name in ("MENS_PARENT_PID", "MKL_CBWR", "MKL_DYNAMIC"):
        environment.pop(name, None)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def signal_in_mid_run(process: subprocess.Popen, run_dir: Path, number: signal.Signals) -> int:
    deadline = time.monotonic() + ENGINE_SECONDS
    path = run_dir / TELEMETRY_NAME
    while not (path.exists() and '"event": "step"' in path.read_text()):
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=ENGINE_SECONDS)
    return process.returncode


@pytest.fixture(scope="module")
def endless(tiny, tmp_path_factory):
    """A run that does not end by itself within any patience, nor does its first epoch: at its end there would be a checkpoint."""
    rows = ROWS * 3_000
    return tiny.plan_run(tmp_path_factory.mktemp("endless"), rows, exec={"epochs": 1, "checkpoint_every": 100_000})


@pytest.mark.long
def test_sigterm_cancels(endless, tmp_path):
    """`test_child_runtime.py` tests the meaning of the signal, `test_train.py` how a run ends with it; this test sends it to a
    process.
    """
    assert signal_in_mid_run(start(endless, tmp_path), tmp_path, signal.SIGTERM) == EXIT_CANCELLED
    assert list_checkpoints(tmp_path) == []
    assert not (tmp_path / ERROR_NAME).exists()


def test_sigusr1_pauses_with_a_checkpoint(endless, tmp_path):
    assert signal_in_mid_run(start(endless, tmp_path), tmp_path, signal.SIGUSR1) == EXIT_PAUSED
    done = steps_done(tmp_path)[-1]
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"step-{done:08d}"]
    assert not (tmp_path / ERROR_NAME).exists()


@pytest.mark.long
def test_bad_data_ends_with_a_coded_error(tiny, tmp_path):
    """How an error becomes a file and an exit code, in this process: `test_full_disk.py`."""
    run = tiny.plan_run(tmp_path)
    Path(run.inputs.train).write_text('{"prompt": "Q", "response": "A"}\n{"prompt": "Q"}\n')
    process = start(run, tmp_path / "run")
    output = process.communicate(timeout=ENGINE_SECONDS)[0].decode()
    assert process.returncode == EXIT_FAILED, output
    error = read_json(tmp_path / "run" / ERROR_NAME)
    assert error["code"] == Code.DATASET_LINE_INVALID
    assert error["details"]["errors"][0]["line"] == 2
    assert error["retryable"] is False
    assert "DATASET_LINE_INVALID" in output


def test_the_process_trains_what_the_function_trains(tiny, tmp_path, monkeypatch):
    """The process has a different hash seed and a different heap."""
    run = tiny.plan_run(tmp_path, exec={"epochs": 1})
    process = start(run, tmp_path / "process", PYTHONHASHSEED="1", MALLOC_ARENA_MAX="2")
    output = process.communicate(timeout=ENGINE_SECONDS)[0].decode()
    assert process.returncode == 0, output
    # This process may have found other packages on its path by now, which other tests have put there.
    monkeypatch.setattr("worker.training.lineage.environment_digest", lambda: environment_of(tmp_path / "process"))
    assert adapter_digests(tmp_path / "process") == adapter_digests(tiny.train(run, tmp_path / "function"))


def environment_of(run_dir):
    manifest = AdapterManifest.model_validate_json((run_dir / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())
    return manifest.lineage.environment_digest
