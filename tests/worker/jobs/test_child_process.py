"""The engine as a child process, with small stand-ins for the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.errors import Code, JobFailed
from worker.engine import LOG_TAIL_LINES, Ending, Engine
from worker.rundir import PLAN_NAME, write_json

PATIENCE = 20
READY = "tell('ready')\n"
SLEEP = READY + "time.sleep(60)\n"


@pytest.fixture
def run_dir(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def start(fake_engine, run_dir):
    """Starts engines, and ends them however the test ends."""
    engines = []

    def begin(code: str, **more) -> Engine:
        engines.append(Engine(fake_engine(code), run_dir, **more))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


def until(condition, what: str = "it happened"):
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return value


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ended(engine: Engine) -> Engine:
    assert engine.wait(PATIENCE) is not None
    return engine


def failure(engine: Engine) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        ended(engine).ending()
    return failed.value


# -- command and telemetry --------------------------------------------------------------------------------------------


def test_command_and_environment(start, run_dir):
    code = "tell('told', argv=sys.argv[1:], threads=os.environ.get('OMP_NUM_THREADS'), parent=os.getppid())"
    engine = ended(start(code, resume=run_dir / "checkpoints" / "step-1", threads=3))
    payload = engine.new_telemetry()[0]["payload"]
    plan, folder, *more = payload["argv"]
    assert (Path(plan), Path(folder)) == (run_dir / PLAN_NAME, run_dir)
    assert more == ["--resume", str(run_dir / "checkpoints" / "step-1")]
    assert (payload["threads"], payload["parent"]) == ("3", os.getpid())


def test_parent_is_named_and_the_group_is_its_own(start):
    code = "tell('told', group=os.getpgrp(), parent=os.environ['MENS_PARENT_PID'])"
    engine = ended(start(code))
    assert engine.new_telemetry()[0]["payload"] == {"group": engine.pid, "parent": str(os.getpid())}
    assert engine.pid != os.getpgrp()


def test_wait_gives_up_after_its_time(start):
    engine = start(SLEEP)
    assert engine.wait(0.01) is None


def test_telemetry_before_there_is_any(start):
    assert start("time.sleep(60)").new_telemetry() == []


def test_each_event_comes_once_and_half_a_line_waits(start, run_dir):
    engine = start("time.sleep(60)")
    path = run_dir / "telemetry.jsonl"
    lines = [json.dumps({"event": "step", "payload": {"step": n, "text": "é"}}, ensure_ascii=False) for n in range(4)]
    whole = lines[1].encode()
    with path.open("ab", buffering=0) as file:
        file.write(lines[0].encode() + b"\n" + whole[:-6])
        assert [line["payload"]["step"] for line in engine.new_telemetry()] == [0]
        assert engine.new_telemetry() == []
        file.write(whole[-6:])
        assert engine.new_telemetry() == []
        file.write(b"\n" + lines[2].encode() + b"\n" + lines[3].encode() + b"\n")
        assert [line["payload"]["step"] for line in engine.new_telemetry()] == [1, 2, 3]
    assert engine.new_telemetry() == []


# -- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exit_code", "ending"), [(0, Ending.COMPLETE), (10, Ending.PAUSED), (11, Ending.CANCELLED)])
def test_exit_codes(start, exit_code, ending):
    assert ended(start(f"sys.exit({exit_code})")).ending() is ending


def test_coded_error_of_the_engine(start, run_dir):
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


def test_error_file_of_a_run_that_crashed_otherwise_is_not_believed(start, run_dir):
    write_json(run_dir / "error.json", {"code": "OUT_OF_MEMORY", "message": "Old."})
    assert failure(start("sys.exit(1)")).code == Code.TRAINER_CRASHED


def test_crash_tells_the_end_of_the_log(start):
    failed = failure(start("for n in range(40): print('line', n, flush=True)\nraise ValueError('odd shape')"))
    assert failed.code == Code.TRAINER_CRASHED
    assert not failed.retryable
    assert "odd shape" in failed.message
    assert len(failed.details["log_tail"]) == LOG_TAIL_LINES
    assert failed.details["log_tail"][-1] == "ValueError: odd shape"
    assert failed.details["exit_code"] == 1


def test_crash_without_a_word(start):
    failed = failure(start("os._exit(7)"))
    assert failed.code == Code.TRAINER_CRASHED
    assert "exit code 7" in failed.message
    assert failed.details["log_tail"] == []


def test_exit_code_3_without_an_error_file_is_a_crash(start):
    assert failure(start("sys.exit(3)")).code == Code.TRAINER_CRASHED


def test_killed_engine_may_be_tried_again(start):
    failed = failure(start("os.kill(os.getpid(), signal.SIGKILL)"))
    assert failed.code == Code.TRAINER_KILLED
    assert failed.retryable
    assert "SIGKILL" in failed.message


def test_segmentation_fault_is_told_by_name(start):
    failed = failure(start("os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (failed.code, failed.details["exit_code"]) == (Code.TRAINER_KILLED, -signal.SIGSEGV)
    assert "SIGSEGV" in failed.message


# -- stopping ---------------------------------------------------------------------------------------------------------

OBEDIENT = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(10))\n"
)
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"


@pytest.mark.parametrize(("checkpoint", "ending"), [(True, Ending.PAUSED), (False, Ending.CANCELLED)])
def test_asked_to_stop(start, checkpoint, ending):
    engine = start(OBEDIENT + SLEEP)
    until(engine.new_telemetry, "it is ready")
    engine.ask_to_stop(checkpoint=checkpoint, grace_seconds=60)
    engine.enforce_stop()
    assert ended(engine).ending() is ending


@pytest.mark.parametrize(("checkpoint", "ending"), [(True, Ending.PAUSED), (False, Ending.CANCELLED)])
def test_asked_before_it_listens(start, checkpoint, ending):
    """Its imports take seconds, and until they are done a signal ends it: no crash, and nothing to try again."""
    engine = start("tell('starting')\ntime.sleep(60)")
    until(engine.new_telemetry)
    engine.ask_to_stop(checkpoint=checkpoint, grace_seconds=60)
    assert ended(engine).ending() is ending


def test_engine_that_does_not_stop_is_killed_after_its_grace(start):
    engine = start(STUBBORN + SLEEP)
    until(engine.new_telemetry, "it is ready")
    engine.enforce_stop()
    engine.ask_to_stop(checkpoint=False, grace_seconds=0.2)
    engine.enforce_stop()
    assert engine.wait(0.05) is None
    engine.ask_to_stop(checkpoint=False, grace_seconds=60)  # asking again gives no more time
    time.sleep(0.2)
    engine.enforce_stop()
    assert engine.wait(PATIENCE) == -signal.SIGKILL


CHILD = "child = subprocess.Popen(['sleep', '60'])\ntell('child', pid=child.pid)\n"


@pytest.mark.parametrize("rest", ["time.sleep(60)", "sys.exit(0)"], ids=["alive", "ended"])
def test_children_of_the_engine_go_with_it(start, rest):
    engine = start(CHILD + rest)
    child = until(engine.new_telemetry, "it has a child")[0]["payload"]["pid"]
    if rest == "sys.exit(0)":
        ended(engine)
        assert not gone(child)
    engine.close()
    until(lambda: gone(child), "the child is gone")
    assert gone(engine.pid)


def test_kill_after_the_end_is_harmless(start):
    engine = ended(start("pass"))
    engine.kill()
    engine.kill()
    assert engine.ending() is Ending.COMPLETE


# -- the worker dies --------------------------------------------------------------------------------------------------

WORKER = """
import sys, time
from pathlib import Path
from worker.engine import Engine
engine = Engine(sys.argv[1], Path(sys.argv[2]))
print(engine.pid, flush=True)
time.sleep(60)
"""
DIES_WITH_PARENT = "from worker.process import die_with_worker\ndie_with_worker()\n"


def test_engine_dies_when_its_worker_is_killed(fake_engine, run_dir):
    module = fake_engine(DIES_WITH_PARENT + SLEEP)
    command = [sys.executable, "-c", WORKER, module, str(run_dir)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        pid = int(worker.stdout.readline())
        until((run_dir / "telemetry.jsonl").exists, "the engine is ready")
        assert not gone(pid)
        worker.kill()
        worker.wait()
        until(lambda: gone(pid), "the engine is gone")
    finally:
        worker.kill()
        worker.communicate()


def test_engine_whose_worker_died_before_it_began_ends_at_once(fake_engine, run_dir):
    module = fake_engine(DIES_WITH_PARENT + SLEEP)
    environment = {**os.environ, "MENS_PARENT_PID": "1"}
    command = [sys.executable, "-m", module, "plan.json", str(run_dir)]
    done = subprocess.run(command, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert not (run_dir / "telemetry.jsonl").exists()
