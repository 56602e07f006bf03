"""The launcher of several processes, with small programs in place of the trainer: the worker sees them as one process.

``make test`` has one case of each kind: a stop, an error with a code, a kill from outside, and a kill by the worker.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from shared.contract.contracts import FineTuneContract
from shared.errors import Code, JobFailed, Unavailable
from shared.gpus.torch_report import TorchGpu
from shared.gpus.usable import MachineGpus
from tests.support.training_runs import contract_for
from worker.jobs.child_process import ChildProcess, ExitReason, count_processes
from worker.run_folder import (
    ENDING_NAME,
    ERROR_NAME,
    FIRST_PROCESS_NAME,
    LOG_NAME,
    STOP_NAME,
    TELEMETRY_NAME,
    read_json,
    write_json,
)
from worker.torchrun import SignalRelay

PATIENCE = 180

HEAD = """
from shared.errors import Code, JobFailed
from worker.child_runtime import *
from worker.child_runtime import announce
rank = int(os.environ['RANK'])
exit_with_worker()
time.sleep(0.5 * (1 - rank))  # signals come before the first process can take them
stop = StopSignals()
announce(run_dir)
def forever():
    while not (stop.cancel_requested or stop.pause_requested):
        time.sleep(0.05)
    raise StopRequested(EXIT_CANCELLED if stop.cancel_requested else EXIT_PAUSED)
def told_to():
    while not (run_dir / 'stop').exists():
        time.sleep(0.05)
    raise StopRequested(int((run_dir / 'stop').read_text()))
def lose_the_other():
    # Once it is gone, however late it came, and after a moment in which torchrun may see that.
    while not (other := [one for line in telemetry() if (one := line['payload'])['rank'] != rank]):
        time.sleep(0.05)
    while is_there(other[0]['pid']):
        time.sleep(0.05)
    time.sleep(0.5)
    raise PeerLost
def telemetry():
    lines = (run_dir / 'telemetry.jsonl').read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith('\\n')]
def is_there(pid):
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False
emit('ready', rank=rank, pid=os.getpid(), threads=os.environ['OMP_NUM_THREADS'], argv=sys.argv[3:])
"""
TAIL = "\nsys.exit(run_engine(work, run_dir))\n"
AGREES = """
def work():
    if rank:
        told_to()
    try:
        forever()
    except StopRequested as asked:
        write = run_dir / 'stop.tmp'
        write.write_text(str(asked.exit_code))
        write.rename(run_dir / 'stop')
        raise
"""


@pytest.fixture
def start(fake_trainer, tmp_path):
    engines = []
    (tmp_path / "run").mkdir()

    def begin(work: str, **more) -> ChildProcess:
        module = fake_trainer(HEAD + work + TAIL)
        engines.append(ChildProcess(module, tmp_path / "run", processes=2, **more))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


def until(condition, what: str):
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def ready(engine: ChildProcess) -> list[dict]:
    """Return the reports of both processes, once they run."""

    def both():
        path = engine.run_dir / TELEMETRY_NAME
        lines = path.read_text().splitlines() if path.exists() else []
        return (
            sorted((json.loads(line)["payload"] for line in lines), key=lambda one: one["rank"])
            if len(lines) == 2
            else []
        )

    return until(both, "both processes are there")


def ended(engine: ChildProcess) -> ExitReason:
    assert engine.wait(PATIENCE) is not None, (engine.run_dir / LOG_NAME).read_text()
    return engine.ending()


def failure(engine: ChildProcess) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        ended(engine)
    return failed.value


def check_what_both_were_given(engine: ChildProcess, tmp_path: Path) -> None:
    """Half of the engine's four threads, and its options."""
    assert [(one["threads"], one["argv"]) for one in ready(engine)] == [("2", ["--cache", str(tmp_path / "cache")])] * 2


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.long
def test_both_end_well(start, tmp_path):
    engine = start("work = lambda: None", threads=4, cache=tmp_path / "cache")
    assert ended(engine) is ExitReason.COMPLETE
    check_what_both_were_given(engine, tmp_path)
    assert read_json(engine.run_dir / ENDING_NAME) is None


@pytest.mark.parametrize(
    ("checkpoint", "ending"),
    [(True, ExitReason.PAUSED), pytest.param(False, ExitReason.CANCELLED, marks=pytest.mark.long)],
)
def test_a_signal_reaches_the_first_process_whenever_it_is_sent(start, tmp_path, checkpoint, ending):
    engine = start(AGREES, threads=4, cache=tmp_path / "cache")
    children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children")
    until(children.read_text, "torchrun has started them")
    engine.request_stop(checkpoint=checkpoint, grace_seconds=PATIENCE)
    assert ended(engine) is ending
    check_what_both_were_given(engine, tmp_path)


def test_the_code_of_the_process_that_failed_is_kept(start, tmp_path):
    """The other one does not end by itself; what a former run has left in the folder is not believed."""
    write_json(tmp_path / "run" / ENDING_NAME, {"exit_code": 10})
    write_json(tmp_path / "run" / ERROR_NAME, {"code": "OUT_OF_MEMORY", "message": "Old."})
    fails = "raise JobFailed(Code.LOSS_NOT_FINITE, 'It was NaN.', remedy='Lower it.')"
    engine = start(f"def work():\n    if rank:\n        {fails}\n    while True: time.sleep(1)")
    assert failure(engine).as_dict()["message"] == "It was NaN."


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise JobFailed(Code.LOSS_NOT_FINITE, 'It was NaN.', remedy='Lower it.')", Code.LOSS_NOT_FINITE),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", Code.TRAINER_KILLED, marks=pytest.mark.long),
    ],
    ids=["coded", "killed"],
)
def test_failure_during_a_pause_is_not_a_pause(start, end, code):
    """torchrun ends the first process with the signal of a cancel, before it has written a checkpoint."""
    engine = start(
        "def work():\n"
        "    while not (stop.cancel_requested if rank == 0 else (run_dir / 'stop.json').exists()):\n"
        "        time.sleep(0.05)\n"
        f"    if rank: {end}\n"
        "    raise StopRequested(EXIT_CANCELLED)"
    )
    ready(engine)
    engine.request_stop(checkpoint=True, grace_seconds=PATIENCE)
    assert failure(engine).code == code


def test_noted_cancel_outranks_a_later_pause(tmp_path):
    nobody = 2**22 + 1  # above the largest process id of Linux
    write_json(tmp_path / FIRST_PROCESS_NAME, {"pid": nobody})
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        SignalRelay(tmp_path)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert read_json(tmp_path / STOP_NAME) == {"signal": signal.SIGTERM}


@pytest.mark.long
def test_a_crash_is_reported_in_the_words_of_the_process_that_crashed(start):
    engine = start("def work():\n    if rank: raise ValueError('odd shape')\n    lose_the_other()")
    failed = failure(engine)
    assert (failed.code, failed.details["exit_code"]) == (Code.TRAINER_CRASHED, 1)
    assert failed.details["log_tail"][-1] == "ValueError: odd shape"


@pytest.mark.long
def test_a_killed_process_may_be_tried_again(start):
    engine = start("def work():\n    if rank: os.kill(os.getpid(), signal.SIGKILL)\n    lose_the_other()")
    failed = failure(engine)
    assert (failed.code, failed.retryable) == (Code.TRAINER_KILLED, True)
    assert "SIGKILL" in failed.message


def test_processes_that_know_only_of_each_other_lost_a_peer(start):
    engine = start("def work():\n    raise PeerLost('Connection closed by peer')")
    failed = failure(engine)
    assert (failed.code, failed.retryable) == (Code.PEER_LOST, True)


@pytest.mark.long
def test_a_process_terminated_from_outside_is_a_lost_peer(start):
    """Terminate a process as torchrun's agent on another machine does: the first process sees a cancel without a request."""
    engine = start(AGREES)
    os.kill(ready(engine)[0]["pid"], signal.SIGTERM)
    failed = failure(engine)
    assert (failed.code, failed.retryable) == (Code.PEER_LOST, True)


@pytest.mark.long
def test_a_disk_without_room_for_a_word_may_be_tried_again(start):
    """Neither the error's file nor the exit code's can be written."""
    engine = start(
        "import worker.child_runtime\n"
        "def write_json(path, value): Path('/dev/full').write_text('x')\n"
        "def work():\n"
        "    worker.child_runtime.write_json = write_json\n"
        "    if rank: Path('/dev/full').write_text('x')\n"
        "    lose_the_other()"
    )
    with pytest.raises(Unavailable) as failed:
        ended(engine)
    assert (failed.value.code, failed.value.retryable) == (Code.STORAGE_FULL, True)


def test_none_outlives_the_engine(start):
    engine = start("work = forever")
    pids = [one["pid"] for one in ready(engine)]
    assert engine.pid not in pids
    engine.kill()
    until(lambda: all(gone(pid) for pid in pids), "both are gone")


# -- how many ---------------------------------------------------------------------------------------------------------


def pretend_gpus(monkeypatch, count: int) -> None:
    gpu = TorchGpu(name="H200", capability=(9, 0), memory_bytes=1 << 30)
    monkeypatch.setattr("worker.jobs.child_process.find_gpus", lambda: MachineGpus((gpu,) * count))


def contract(device: str = "best", **exec_: int) -> FineTuneContract:
    return contract_for("tiny", exec=exec_, device={"device": device})


@pytest.mark.parametrize(
    ("asked", "gpus", "count"), [(1, 4, 1), (0, 4, 4), (0, 0, 1), (3, 0, 3), (2, 4, 2), (16, 0, 8)]
)
def test_processes_of_a_run(monkeypatch, asked, gpus, count):
    pretend_gpus(monkeypatch, gpus)
    assert count_processes(asked, contract(batch_size=2, grad_accum=4)) == count


def test_a_job_on_the_cpu_counts_no_gpus(monkeypatch):
    pretend_gpus(monkeypatch, 4)
    assert count_processes(0, contract("cpu", batch_size=8)) == 1
