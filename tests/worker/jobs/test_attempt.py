"""One attempt with a small program as the trainer: telemetry to the database, stop requests, and every outcome."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import worker.jobs.runner
from shared.contract.plan import PlannedBase
from shared.database.job_states import JobState, Stage
from shared.database.leases import Lease, Leases
from shared.database.lists.job_series import read_extent, read_series
from shared.database.queueing.gpu_time import Spent
from shared.database.records import Kind, NewEvent
from shared.errors import Code, JobFailed, LeaseLost, MensError, Unavailable
from tests.support.builders import submission
from tests.support.processes import is_gone
from tests.support.waiting import eventually
from worker.jobs.attempt import Attempt
from worker.jobs.child_process import ChildProcess
from worker.jobs.heartbeat import LeaseKeeper
from worker.watchdog.idle import IdleWatch, group_cpu_seconds
from worker.watchdog.stall import StallWatch

STEP = (
    "emit('step', step=3, total_steps=9, epoch=0, loss=1.5, token_accuracy=.5, learning_rate=.1, tokens_per_sec=7.0,"
    " eta_seconds_remaining=None, progress_fraction=.3)\n"
)
OBEDIENT = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(10))\n"
)
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
SLOW_TO_PAUSE = (
    "received = []\nsignal.signal(signal.SIGUSR1, lambda *_: received.append(10))\n"
    "signal.signal(signal.SIGTERM, lambda *_: received.append(11))\nemit('ready')\n"
    "while not received: time.sleep(.01)\n(run_dir / 'pausing').touch()\n"
    "while not (run_dir / 'leave').exists(): time.sleep(.01)\nsys.exit(max(received))\n"
)
"""Writes its checkpoint from ``pausing`` on, until ``leave`` is there."""
RUN_ON = "emit('ready')\ntime.sleep(60)\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("worker.jobs.attempt.POLL_SECONDS", 0.02)


def run(installation, monkeypatch, module: str, when_ready=lambda job_id: None, *, stall=None, idle=None, **terms):
    """Run a job whose work is to follow that module as a child process; returns the job's row afterwards.

    ``idle`` makes a watch of the child's process group; ``terms`` are the job's limits.
    """
    job, _ = installation.jobs.submit(submission(**terms))
    children = []

    def work(attempt: Attempt) -> None:
        attempt.run_dir.mkdir(parents=True)
        children.append(ChildProcess(module, attempt.run_dir))
        deadline = time.monotonic() + 60
        while not (attempt.run_dir / "telemetry.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        when_ready(job.id)
        attempt.follow(children[0], stall=stall, idle=idle and idle(children[0].pid))
        attempt.leases.finish(attempt.lease, {})

    monkeypatch.setitem(worker.jobs.runner.RUNNERS, Kind.FINETUNE, work)
    installation.worker.run_job(job.id)
    assert children[0]._process.poll() is not None
    return installation.jobs.get(job.id)


def test_telemetry_reaches_the_database(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP))
    assert job.state is JobState.SUCCEEDED
    assert job.progress["step"] == 3
    assert job.progress["fraction"] == 0.3
    assert "Step 3/9: training loss=1.5000" in installation.messages(job.id)


def test_crash_of_the_child_fails_the_job(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP + "raise ValueError('odd shape')"))
    assert (job.state, job.error["code"]) == (JobState.FAILED, Code.TRAINER_CRASHED)


def test_killed_child_is_retried(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(STEP + "os.kill(os.getpid(), 9)"))
    assert job.state is JobState.QUEUED
    assert any("TRAINER_KILLED" in message for message in installation.messages(job.id))


def test_child_that_another_program_terminates_is_retried(installation, monkeypatch, fake_trainer):
    """No cancel was requested, so the job is not cancelled."""
    job = run(installation, monkeypatch, fake_trainer(STEP + "sys.exit(11)"))
    assert job.state is JobState.QUEUED
    assert any("TRAINER_TERMINATED" in message for message in installation.messages(job.id))


def test_log_of_a_running_and_of_a_succeeded_attempt_is_kept(installation, monkeypatch, fake_trainer):
    monkeypatch.setattr("worker.jobs.attempt.LOG_SECONDS", 0.05)
    waits = "print('begun', flush=True)\nemit('ready')\nwhile not (run_dir / 'leave').exists(): time.sleep(.01)\nprint('end')\n"
    seen, written, keep_log = [], [], Leases.keep_log

    def keep(leases, lease, text):
        written.append(text)
        keep_log(leases, lease, text)

    def look(job_id):
        eventually(lambda: installation.jobs.log(job_id))
        time.sleep(0.5)  # for several more looks at a log that has not grown
        seen.append(installation.jobs.log(job_id).text)
        next(installation.worker.settings.runs_dir.glob("*/attempt-*")).joinpath("leave").touch()

    monkeypatch.setattr(Leases, "keep_log", keep)
    with ThreadPoolExecutor() as pool:
        job = run(installation, monkeypatch, fake_trainer(waits), lambda job_id: pool.submit(look, job_id))
    assert (job.state, seen) == (JobState.SUCCEEDED, ["begun\n"])
    assert installation.jobs.log(job.id).text == "begun\nend\n"
    assert written == ["begun\n", "begun\nend\n"], "only what has grown is written again"


HANG = "while True: time.sleep(60)\n"


@pytest.mark.parametrize(
    ("code", "stall"),
    [("emit('ready')\n" + HANG, StallWatch(0.2, 1e9)), (STUBBORN + STEP + HANG, StallWatch(1e9, 0.2))],
    ids=["before its first step", "after a step"],
)
def test_a_trainer_that_hangs_is_killed_and_the_job_tried_again(
    open_installation, monkeypatch, fake_trainer, code, stall
):
    installation = open_installation(terminate_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(code), stall=stall)
    assert job.state is JobState.QUEUED
    assert any("TRAINER_STALLED" in message for message in installation.messages(job.id))


def test_a_trainer_that_is_slow_but_moves_is_left_alone(installation, monkeypatch, fake_trainer):
    """The time that goes by is its steps': how long the machine takes for them says nothing."""
    now, read = [0.0], ChildProcess.new_telemetry

    def new_telemetry(child: ChildProcess):
        telemetry = read(child)
        now[0] += 0.3 * len(telemetry)
        return telemetry

    monkeypatch.setattr(ChildProcess, "new_telemetry", new_telemetry)
    steps = "for _ in range(5):\n    time.sleep(.1)\n    " + STEP
    job = run(installation, monkeypatch, fake_trainer(steps), stall=StallWatch(0.4, 0.4, lambda: now[0]))
    assert job.state is JobState.SUCCEEDED
    assert now[0] > 2 * 0.4


GROUP = (
    STUBBORN + "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
    " signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n(run_dir / 'pids').write_text(f'{os.getpid()} {child.pid}')\n"
)


def pids_of(installation, job) -> list[int]:
    return [int(pid) for pid in (installation.settings.runs_dir / job.id / "attempt-0001" / "pids").read_text().split()]


LIMITS = {
    "WALL_CLOCK_CAP_EXCEEDED": ({"max_job_seconds": 0.3}, {}, "wall_clock_cap"),
    "GPU_BUDGET_EXCEEDED": ({}, {"max_gpu_minutes": 0.005}, "gpu_budget"),
    "TIME_LIMIT_EXCEEDED": ({}, {"max_wall_seconds": 0.3}, "time_limit"),
}


@pytest.mark.parametrize("code", list(LIMITS))
def test_what_uses_too_much_fails_and_its_process_group_is_gone(open_installation, monkeypatch, fake_trainer, code):
    settings, terms, termination = LIMITS[code]
    installation = open_installation(terminate_seconds=0.2, **settings)
    job = run(installation, monkeypatch, fake_trainer(GROUP + RUN_ON), **terms)
    assert (job.state, job.error["code"], job.error["retryable"]) == (JobState.FAILED, code, False)
    assert job.error["details"]["termination"] == termination
    event = installation.jobs.events(job.id)[-1]
    assert (event.level, event.data["error"]["details"]["termination"]) == ("error", termination)
    assert all(eventually(lambda pid=pid: is_gone(pid)) for pid in pids_of(installation, job))


def test_a_trainer_that_hangs_frees_its_gpu_with_all_its_processes(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(terminate_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(GROUP + STEP + HANG), stall=StallWatch(1e9, 0.2))
    assert job.state is JobState.QUEUED
    assert installation.jobs.events(job.id)[-1].data["error"]["details"]["termination"] == "stall"
    assert all(eventually(lambda pid=pid: is_gone(pid)) for pid in pids_of(installation, job))


def test_a_trainer_gets_sigterm_before_it_is_killed(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(terminate_seconds=60)
    polite = "def leave(*_):\n    (run_dir / 'left').touch()\n    sys.exit(11)\nsignal.signal(signal.SIGTERM, leave)\n"
    job = run(installation, monkeypatch, fake_trainer(polite + RUN_ON), max_wall_seconds=0.3)
    assert job.error["code"] == Code.TIME_LIMIT_EXCEEDED
    assert (installation.settings.runs_dir / job.id / "attempt-0001" / "left").exists()


def test_a_trainer_that_does_nothing_is_ended(installation, monkeypatch, fake_trainer):
    def idle(group: int) -> IdleWatch:
        return IdleWatch(group, 0.5, gpu_share=lambda: 0.0)

    job = run(installation, monkeypatch, fake_trainer(RUN_ON), idle=idle)
    assert job.state is JobState.QUEUED
    assert any("TRAINER_IDLE" in message for message in installation.messages(job.id))


def test_a_trainer_that_computes_is_not_idle(installation, monkeypatch, fake_trainer):
    """Time is measured in processor time: other programs may delay the process for long."""
    used = [0.0]

    def idle(group: int) -> IdleWatch:
        def clock() -> float:
            used[0] = group_cpu_seconds(group)
            return 2 * used[0]

        monkeypatch.setattr("worker.watchdog.idle.group_cpu_seconds", lambda _: used[0])
        return IdleWatch(group, 0.5, clock=clock, gpu_share=lambda: 0.0)

    busy = "emit('ready')\nuntil = time.process_time() + 1.0\nwhile time.process_time() < until: pass\n"
    assert run(installation, monkeypatch, fake_trainer(busy), idle=idle).state is JobState.SUCCEEDED
    assert 2 * used[0] > 2 * 0.5


def test_a_trainer_whose_worker_reaches_no_database_is_ended(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(orphan_seconds=0.3, heartbeat_seconds=60)
    job = run(installation, monkeypatch, fake_trainer(RUN_ON))
    assert job.state is JobState.QUEUED
    assert any("TRAINER_ORPHANED" in message for message in installation.messages(job.id))


def test_what_earlier_attempts_have_used_counts(installation, monkeypatch):
    job, _ = installation.jobs.submit(submission(max_wall_seconds=6000.0))
    lease = installation.leases.claim(job.id, "first")
    make_attempt(installation, Lease(lease.job, lease.token, 1, Spent(5000.0, 5000.0))).raise_if_stopped()
    attempt = make_attempt(installation, Lease(lease.job, lease.token, 1, Spent(6001.0, 6001.0)))
    with pytest.raises(JobFailed) as failed:
        attempt.raise_if_stopped()
    assert failed.value.code == Code.TIME_LIMIT_EXCEEDED


def test_cancel(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), installation.jobs.cancel)
    assert job.state is JobState.CANCELLED


def test_pause(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), installation.jobs.pause)
    assert job.state is JobState.PAUSED


def test_shutdown_of_the_worker_returns_the_job_to_the_queue(installation, monkeypatch, fake_trainer):
    job = run(installation, monkeypatch, fake_trainer(OBEDIENT + RUN_ON), lambda _: installation.worker.stopping.set())
    assert job.state is JobState.QUEUED
    assert "Returned to the queue: the worker stops." in installation.messages(job.id)


def test_cancel_that_has_to_kill_is_still_a_cancel(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(stop_grace_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), installation.jobs.cancel)
    assert job.state is JobState.CANCELLED
    last = installation.messages(job.id)[-1]
    assert last.startswith("Job cancelled; its attempt ended with an error: ") and "did not stop in time" in last


def test_pause_that_has_to_kill_is_still_a_pause(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(stop_grace_seconds=0.2)
    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), installation.jobs.pause)
    assert job.state is JobState.PAUSED
    last = installation.messages(job.id)[-1]
    assert last.startswith("Job paused; its attempt ended with an error: ") and "did not stop in time" in last


def test_cancel_while_the_child_pauses_takes_effect(open_installation, monkeypatch, fake_trainer):
    installation = open_installation(stop_grace_seconds=120)

    def cancel_as_it_pauses(job_id: str) -> None:
        run_dir = installation.settings.runs_dir / job_id / "attempt-0001"
        eventually((run_dir / "pausing").exists, what="the child pauses")
        installation.jobs.cancel(job_id)
        (run_dir / "leave").touch()

    with ThreadPoolExecutor(1) as beside:
        cancelled = []

        def pause_then_cancel(job_id: str) -> None:
            installation.jobs.pause(job_id)
            cancelled.append(beside.submit(cancel_as_it_pauses, job_id))

        job = run(installation, monkeypatch, fake_trainer(SLOW_TO_PAUSE), pause_then_cancel)
        cancelled[0].result()
    assert job.state is JobState.CANCELLED


def test_lost_lease_kills_the_child_and_writes_nothing(installation, monkeypatch, fake_trainer):
    seen = {}

    def lose(job_id: str) -> None:
        installation.expire_lease(job_id)
        assert installation.leases.claim(job_id, "second")
        seen["version"] = installation.jobs.get(job_id).version

    job = run(installation, monkeypatch, fake_trainer(STUBBORN + RUN_ON), lose)
    assert (job.state, job.attempt, job.version) == (JobState.RUNNING, 2, seen["version"])


# -- without a child process --------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(installation) -> Attempt:
    return make_attempt(installation, installation.leases.claim(installation.submit().id, "first"))


def make_attempt(installation, lease: Lease) -> Attempt:
    keeper = LeaseKeeper(installation.leases, lease, 60)
    return Attempt(
        installation.settings,
        installation.leases,
        installation.storage,
        lease,
        keeper,
        installation.worker.stopping.is_set,
    )


def test_every_attempt_has_a_folder_of_its_own(attempt, installation):
    job_dir = installation.settings.runs_dir / attempt.lease.job.id
    assert attempt.run_dir == job_dir / "attempt-0001"
    for name in ("attempt-0001", "attempt-0003", "attempt-0002", "notes"):
        (job_dir / name).mkdir(parents=True)
    assert [run.name for run in attempt.earlier_runs()] == ["attempt-0003", "attempt-0002"]


def test_entering_a_stage_is_reported(attempt, installation):
    attempt.enter(Stage.TRAINING, "Starting.")
    job = installation.jobs.get(attempt.lease.job.id)
    assert job.stage is Stage.TRAINING
    assert installation.messages(job.id)[-1] == "Starting."


def test_events_and_progress_wait_while_the_database_is_unavailable(attempt, installation, monkeypatch):
    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    with monkeypatch.context() as patch:
        patch.setattr(installation.leases, "report", unavailable)
        attempt.report(events=[NewEvent(message="one")])
        attempt.report(events=[NewEvent(message="two")], progress={"kind": "training", "step": 8, "total_steps": 9})
        attempt.report(progress={"kind": "training", "step": 9, "total_steps": 9})
    attempt.report(events=[NewEvent(message="three")])
    attempt.report()
    assert installation.messages(attempt.lease.job.id)[-3:] == ["one", "two", "three"]
    assert installation.jobs.get(attempt.lease.job.id).progress["step"] == 9


def test_series_wait_while_the_database_is_unavailable(attempt, installation, monkeypatch):
    def unavailable(*_: object, **__: object) -> None:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "No answer.")

    def step(number: int) -> dict:
        return {"event": "step", "payload": {"step": number, "loss": float(number)}}

    with monkeypatch.context() as patch:
        patch.setattr(installation.leases, "report", unavailable)
        attempt._series.add([step(1)])
        attempt.report()
    attempt._series.add([step(2)])
    attempt.report()
    job_id, database = attempt.lease.job.id, installation.leases.database
    extent = read_extent(database, job_id)
    assert extent == ({1: 1}, 2, ["train_loss"])
    (values,) = read_series(database, job_id, extent, extent.names, 1, 2).values()
    assert values.tolist() == [1.0, 2.0]


def test_report_of_a_lost_lease_raises(attempt, installation):
    installation.expire_lease(attempt.lease.job.id)
    with pytest.raises(LeaseLost):
        attempt.report(events=[NewEvent(message="late")])
    assert "late" not in installation.messages(attempt.lease.job.id)


def test_base_is_located_and_verified(attempt, installation, tiny, tmp_path):
    planned = PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests)
    assert attempt.locate_base(planned) == tiny.base
    changed = PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests | {"config.json": "0" * 64})
    for other, code in (
        (changed, Code.BASE_DIGEST_MISMATCH),
        (PlannedBase(name="unknown", digests=tiny.entry.digests), Code.MODEL_NOT_FOUND),
    ):
        with pytest.raises(MensError) as failed:
            attempt.locate_base(other)
        assert failed.value.code == code
    shutil.rmtree(tmp_path / "home")
