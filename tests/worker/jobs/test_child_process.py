"""The trainer as a child process, replaced by small programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.errors import Code, JobFailed, Unavailable
from shared.gpus.torch_report import TorchGpu
from shared.gpus.usable import MachineGpus
from tests.support.processes import is_gone
from tests.support.tiny_base import CONFIG
from tests.support.waiting import eventually
from worker.child_runtime import EXIT_PEER_LOST, STORAGE_EXITS, peer_lost
from worker.jobs import child_process
from worker.jobs.child_process import LOG_TAIL_LINES, ChildProcess, ExitReason, trainer_threads
from worker.run_folder import PLAN_NAME, write_json

PATIENCE = 60
READY = "emit('ready')\n"
SLEEP = READY + "time.sleep(60)\n"


@pytest.fixture
def run_dir(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def start(fake_trainer, run_dir):
    """Starts child processes, and ends them however the test ends."""
    started = []

    def begin(code: str, **more) -> ChildProcess:
        started.append(ChildProcess(fake_trainer(code), run_dir, **more))
        return started[-1]

    yield begin
    for child in started:
        child.close()


def ended(child: ChildProcess) -> ChildProcess:
    assert child.wait(PATIENCE) is not None
    return child


def failure(child: ChildProcess) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        ended(child).ending()
    return failed.value


# -- command and telemetry --------------------------------------------------------------------------------------------


def test_command_and_environment(start, run_dir):
    code = "emit('started', argv=sys.argv[1:], threads=os.environ.get('OMP_NUM_THREADS'), parent=os.getppid())"
    child = ended(start(code, resume=run_dir / "checkpoints" / "step-1", threads=3))
    payload = child.new_telemetry()[0]["payload"]
    plan, folder, *more = payload["argv"]
    assert (Path(plan), Path(folder)) == (run_dir / PLAN_NAME, run_dir)
    assert more == ["--resume", str(run_dir / "checkpoints" / "step-1")]
    assert (payload["threads"], payload["parent"]) == ("3", os.getpid())


def test_child_knows_its_parent_and_has_its_own_group(start):
    code = "emit('started', group=os.getpgrp(), parent=os.environ['MENS_PARENT_PID'])"
    child = ended(start(code))
    assert child.new_telemetry()[0]["payload"] == {"group": child.pid, "parent": str(os.getpid())}
    assert child.pid != os.getpgrp()


def test_child_gets_none_of_the_workers_secrets(start, monkeypatch):
    secrets = {
        "MENS_DATABASE_URL": "postgresql://mens:secret@db/mens",
        "MENS_BROKER_URL": "redis://:secret@broker",
        "MENS_SERVING_KEY": "secret",
        "MENS_SERVING_URLS": "http://replica",
        "HF_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SOMEBODY_ELSES_PASSWORD": "secret",
    }
    for name, value in (secrets | {"MENS_TRACKERS": "none", "CUDA_VISIBLE_DEVICES": "0"}).items():
        monkeypatch.setenv(name, value)
    environment = ended(start("emit('started', **os.environ)")).new_telemetry()[0]["payload"]
    assert not environment.keys() & secrets.keys()
    assert not any("secret" in value for value in environment.values())
    assert (environment["MENS_TRACKERS"], environment["CUDA_VISIBLE_DEVICES"]) == ("none", "0")
    assert {"PATH", "HOME"} <= environment.keys()


def test_wait_returns_none_after_its_time(start):
    child = start(SLEEP)
    assert child.wait(0.01) is None


def test_missing_telemetry_file_is_empty(start):
    assert start("time.sleep(60)").new_telemetry() == []


def test_each_event_is_returned_once_and_incomplete_lines_wait(start, run_dir):
    child = start("time.sleep(60)")
    path = run_dir / "telemetry.jsonl"
    lines = [json.dumps({"event": "step", "payload": {"step": n, "text": "é"}}, ensure_ascii=False) for n in range(4)]
    whole = lines[1].encode()
    with path.open("ab", buffering=0) as file:
        file.write(lines[0].encode() + b"\n" + whole[:-6])
        assert [line["payload"]["step"] for line in child.new_telemetry()] == [0]
        assert child.new_telemetry() == []
        file.write(whole[-6:])
        assert child.new_telemetry() == []
        file.write(b"\n" + lines[2].encode() + b"\n" + lines[3].encode() + b"\n")
        assert [line["payload"]["step"] for line in child.new_telemetry()] == [1, 2, 3]
    assert child.new_telemetry() == []


# -- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exit_code", "ending"), [(0, ExitReason.COMPLETE), (10, ExitReason.PAUSED)])
def test_exit_codes(start, exit_code, ending):
    assert ended(start(f"sys.exit({exit_code})")).ending() is ending


def test_coded_error_of_the_child(start, run_dir):
    error = {
        "code": "OUT_OF_MEMORY",
        "message": "Full.",
        "remedy": "Halve it.",
        "param": "exec.batch_size",
        "details": {"bytes": 3},
        "retryable": False,
    }
    write_json(run_dir / "error.json", error)
    failed = failure(start("sys.exit(3)"))
    assert failed.as_dict() == error


def test_error_file_counts_only_with_its_exit_code(start, run_dir):
    write_json(run_dir / "error.json", {"code": "OUT_OF_MEMORY", "message": "Old."})
    assert failure(start("sys.exit(1)")).code == Code.TRAINER_CRASHED


def test_crash_reports_the_end_of_the_log(start):
    failed = failure(start("for n in range(40): print('line', n, flush=True)\nraise ValueError('odd shape')"))
    assert failed.code == Code.TRAINER_CRASHED
    assert not failed.retryable
    assert "odd shape" in failed.message
    assert len(failed.details["log_tail"]) == LOG_TAIL_LINES
    assert failed.details["log_tail"][-1] == "ValueError: odd shape"
    assert failed.details["exit_code"] == 1


def test_crash_without_output(start):
    failed = failure(start("os._exit(7)"))
    assert failed.code == Code.TRAINER_CRASHED
    assert "exit code 7" in failed.message
    assert failed.details["log_tail"] == []


def test_exit_code_3_without_an_error_file_is_a_crash(start):
    assert failure(start("sys.exit(3)")).code == Code.TRAINER_CRASHED


@pytest.mark.parametrize("code", list(STORAGE_EXITS))
def test_a_disk_that_takes_no_error_file_may_be_tried_again(start, code):
    with pytest.raises(Unavailable) as caught:
        ended(start(f"sys.exit({STORAGE_EXITS[code]})")).ending()
    assert (caught.value.code, caught.value.retryable) == (code, True)


def test_killed_child_is_retryable(start):
    failed = failure(start("os.kill(os.getpid(), signal.SIGKILL)"))
    assert failed.code == Code.TRAINER_KILLED
    assert failed.retryable
    assert "SIGKILL" in failed.message


def test_signal_is_reported_by_name(start):
    failed = failure(start("os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (failed.code, failed.details["exit_code"]) == (Code.TRAINER_KILLED, -signal.SIGSEGV)
    assert "SIGSEGV" in failed.message


# -- stopping ---------------------------------------------------------------------------------------------------------

OBEDIENT = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(10))\n"
)
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"


@pytest.mark.parametrize(("checkpoint", "ending"), [(True, ExitReason.PAUSED), (False, ExitReason.CANCELLED)])
def test_stop_request_ends_the_child(start, checkpoint, ending):
    child = start(OBEDIENT + SLEEP)
    eventually(child.new_telemetry, PATIENCE, "it is ready")
    child.request_stop(checkpoint=checkpoint, grace_seconds=60)
    child.enforce_stop()
    assert ended(child).ending() is ending


@pytest.mark.parametrize(("checkpoint", "ending"), [(True, ExitReason.PAUSED), (False, ExitReason.CANCELLED)])
def test_stop_request_before_the_handlers_are_set(start, checkpoint, ending):
    """The trainer's imports take seconds, and until they are done a signal ends it: no crash, and nothing to retry."""
    child = start("emit('starting')\ntime.sleep(60)")
    eventually(child.new_telemetry, PATIENCE, "it is starting")
    child.request_stop(checkpoint=checkpoint, grace_seconds=60)
    assert ended(child).ending() is ending


@pytest.mark.parametrize("handles", [True, False], ids=["handled", "still starting"])
def test_sigterm_of_somebody_else_is_not_a_cancel(start, handles):
    """The node is drained, or a service manager stops every process of the worker's group: the job is tried again."""
    child = start((OBEDIENT if handles else "") + SLEEP)
    eventually(child.new_telemetry, PATIENCE, "it is ready")
    os.kill(child.pid, signal.SIGTERM)
    failed = failure(child)
    assert (failed.code, failed.retryable) == (Code.TRAINER_TERMINATED, True)
    assert failed.remedy


@pytest.mark.parametrize("handles", [True, False], ids=["handled", "still starting"])
def test_sigterm_of_somebody_else_does_not_turn_a_pause_into_a_cancel(start, handles):
    child = start(
        (OBEDIENT if handles else "").replace("SIGUSR1", "SIGUSR2")
        + "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        + SLEEP
    )
    eventually(child.new_telemetry, PATIENCE, "it is ready")
    child.request_stop(checkpoint=True, grace_seconds=60)
    os.kill(child.pid, signal.SIGTERM)
    assert ended(child).ending() is ExitReason.PAUSED


@pytest.mark.parametrize("written", [True, False])
def test_a_lost_peer_is_tried_again(start, run_dir, written):
    if written:
        write_json(run_dir / "error.json", peer_lost().as_dict())
    failed = failure(start(f"sys.exit({EXIT_PEER_LOST})"))
    assert failed.as_dict() == peer_lost().as_dict()
    assert (failed.code, failed.retryable) == (Code.PEER_LOST, True)


def test_child_that_does_not_stop_is_killed_after_grace_time(start, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("worker.jobs.child_process.time", SimpleNamespace(monotonic=lambda: clock.now))
    child = start(STUBBORN + SLEEP)
    eventually(child.new_telemetry, PATIENCE, "it is ready")
    child.enforce_stop()
    child.request_stop(checkpoint=False, grace_seconds=0.2)
    child.enforce_stop()
    assert child.wait(0.05) is None
    # A second request gives no more time.
    child.request_stop(checkpoint=False, grace_seconds=60)
    clock.now = 0.21
    child.enforce_stop()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert "did not stop in time and was killed by SIGKILL" in failure(child).message


GRANDCHILD = "sleep = subprocess.Popen(['sleep', '60'])\nemit('grandchild', pid=sleep.pid)\n"


@pytest.mark.parametrize("rest", ["time.sleep(60)", "sys.exit(0)"], ids=["alive", "ended"])
def test_close_kills_the_whole_process_group(start, rest):
    child = start(GRANDCHILD + rest)
    grandchild = eventually(child.new_telemetry, PATIENCE, "it has a child")[0]["payload"]["pid"]
    if rest == "sys.exit(0)":
        ended(child)
        assert not is_gone(grandchild)
    child.close()
    eventually(lambda: is_gone(grandchild), PATIENCE, "the grandchild is gone")
    assert is_gone(child.pid)


def test_kill_after_the_end_is_harmless(start):
    child = ended(start("pass"))
    child.kill()
    child.kill()
    assert child.ending() is ExitReason.COMPLETE


# -- the worker is killed ---------------------------------------------------------------------------------------------

WORKER = """
import sys, time
from pathlib import Path
from worker.jobs.child_process import ChildProcess
child = ChildProcess(sys.argv[1], Path(sys.argv[2]))
print(child.pid, flush=True)
time.sleep(60)
"""
DIES_WITH_PARENT = "from worker.child_runtime import exit_with_worker\nexit_with_worker()\n"


def test_child_exits_when_its_worker_is_killed(fake_trainer, run_dir):
    module = fake_trainer(DIES_WITH_PARENT + SLEEP)
    command = [sys.executable, "-c", WORKER, module, str(run_dir)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        pid = int(worker.stdout.readline())
        eventually((run_dir / "telemetry.jsonl").exists, PATIENCE, "the child is ready")
        assert not is_gone(pid)
        worker.kill()
        worker.wait()
        eventually(lambda: is_gone(pid), PATIENCE, "the child is gone")
    finally:
        worker.kill()
        worker.communicate()


def test_child_of_a_dead_worker_exits_at_once(fake_trainer, run_dir):
    module = fake_trainer(DIES_WITH_PARENT + SLEEP)
    environment = {**os.environ, "MENS_PARENT_PID": "1"}
    command = [sys.executable, "-m", module, "plan.json", str(run_dir)]
    done = subprocess.run(command, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert not (run_dir / "telemetry.jsonl").exists()


def test_threads_are_the_settings_or_suit_the_base_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "allowed_cores", lambda: 8)
    monkeypatch.setattr(child_process, "find_gpus", MachineGpus)
    large = CONFIG | {"vocab_size": 512, "hidden_size": 1024, "intermediate_size": 4096}
    for name, raw in (("tiny", CONFIG | {"vocab_size": 512}), ("large", large)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
    assert [trainer_threads(None, tmp_path / name) for name in ("tiny", "large")] == [1, 8]
    assert [trainer_threads(setting, tmp_path / "large") for setting in (0, 3)] == [0, 3]
    gpu = TorchGpu(name="H200", capability=(9, 0), memory_bytes=1 << 30)
    monkeypatch.setattr(child_process, "find_gpus", lambda: MachineGpus((gpu,)))
    assert trainer_threads(None, tmp_path / "large") == 0
