"""The trials: what is done to an installation, and the required outcome for its jobs.

A trial is a function that submits jobs and causes a fault with :meth:`TrialRun.suffering`. The conditions are the same
for all trials: each job ends once, with the expected outcome; users get responses with codes in time; the codes of the
outage are shown; and work continues soon afterwards.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
from redis import Redis

from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME
from shared.errors import Code
from tests.support.peft_folder import make_torchtune
from tests.support.postgres import PostgresServer
from tests.support.s3_server import S3Server
from tests.support.waiting import eventually
from tests.system.fault_trials.faults import (
    CannotTry,
    away,
    clock_moved,
    full,
    hanging,
    locked,
    read_only,
    small_disk,
)
from tests.system.fault_trials.verdicts import Verdict, count_outcomes, errors_of, job_faults
from tests.system.fault_trials.witness import NO_CONNECTION, Witness
from tests.system.loop import BASE, SECONDS, Installation

Layout = Literal["one-machine", "clock", "servers"]
"""An installation with SQLite and a folder; the same with a clock that can be moved; one with PostgreSQL and a bucket."""
OUTAGE_SECONDS = 10.0
"""Longer than a lease and than what a statement waits for a lock."""
LONG_EPOCHS = 40
"""Epochs of a job that outlasts every fault here: 200 steps."""
RECOVERY_SECONDS = 60.0
"""On a busy machine; the table has what it was."""
REPLICA_RECOVERY_SECONDS = 180.0
"""A replica takes as long as vLLM needs to start."""
FINAL = ("succeeded", "failed", "cancelled")
LOOPING_TEMPLATE = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% if i < 0 %}x{% endif %}{% endfor %}{% endfor %}"
)
DOUBLING_TEMPLATE = "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}"
LONE_SURROGATE = "\ud800"


@dataclass
class Site:
    """An installation and its surroundings.

    Attributes:
        installation: running.
        home: its folder.
        postgres: its database server; None: SQLite.
        database_url: URL of its database there.
        s3: address of its bucket; None: a folder.
        clock: moves its clock; None: it has the machine's.
    """

    installation: Installation
    home: Path
    postgres: PostgresServer | None = None
    database_url: str = ""
    s3: S3Server | None = None
    clock: Path | None = None

    def process(self, program: str) -> psutil.Process:
        """The process of a program of the installation, once it is there."""
        return psutil.Process(
            eventually(lambda: self.installation.stack.pid(program), SECONDS, f"{program} is running")
        )


@dataclass
class TrialRun:
    """One trial while it is made.

    Attributes:
        site: where.
        jobs: ids of its jobs, each with the codes of which it has to be refused with one; none: it has to succeed.
        witness: the users.
        recovery_seconds: see `Verdict`.
    """

    site: Site
    witness: Witness
    jobs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    recovery_seconds: float | None = None

    @property
    def home(self) -> Path:
        return self.site.home

    def train(self, name: str, **options: Any) -> str:
        """Id of a fine-tune job that has to succeed."""
        job_id = self.site.installation.train(name=name, **options)
        self.jobs[job_id] = ()
        return job_id

    def train_to(self, step: int, **options: Any) -> str:
        """Id of such a job, which has come so far."""
        job_id = self.train("under-fault", checkpoint_every=5, **options)
        self.site.installation.wait_for_step(job_id, step)
        return job_id

    def import_adapter(self, *refusals: str, template: str | None = None, surrogate: str = "") -> str:
        """Id of an import job that has to be refused, with one of these codes."""
        upload, folder = self.site.installation.upload_bytes, self.home / "trial-adapter"
        base = next(path.parent for path in (self.home / "bases").rglob("config.json"))
        made = make_torchtune(base).write(folder)
        weights = (made / WEIGHTS_NAME).read_bytes()
        if surrogate:
            size = int.from_bytes(weights[:8], "little")
            header = json.loads(weights[8 : 8 + size])
            name = next(name for name in header if name.endswith("lora_A.weight"))
            header[f"{surrogate}{name}"] = header.pop(name)
            text = json.dumps(header).encode()
            weights = len(text).to_bytes(8, "little") + text + weights[8 + size :]
        contract = {
            "model": BASE,
            "name": "foreign",
            "publish": False,
            "weights_file": upload(WEIGHTS_NAME, weights),
            "sidecar_file": upload(CONFIG_NAME, (made / CONFIG_NAME).read_bytes()),
            "template_file": upload("chat_template.jinja", template.encode()) if template else None,
        }
        body = {"kind": "import", "contract": contract}
        job_id = str(self.site.installation.call("POST", "/v1/jobs", json=body)["id"])
        self.jobs[job_id] = refusals
        return job_id

    @contextmanager
    def suffering(self, fault: AbstractContextManager[Any]) -> Iterator[None]:
        """Make a fault for as long as the block takes, while users send requests, and measure how soon work continues
        after it.
        """
        with self.witness.asking(lambda: next(iter(self.jobs), None)):
            with fault:
                yield
            ended = time.monotonic()
            before = eventually(self._progress, SECONDS, "the API is ready")
            eventually(lambda: self._are_over() or self._progress() not in (None, before), SECONDS, "work goes on")
            self.recovery_seconds = time.monotonic() - ended

    def until_shown(self, code: str) -> None:
        """Wait until users can see a code."""
        eventually(lambda: code in self.codes(), SECONDS, f"{code} is shown to users")

    def until_refused(self, code: str) -> None:
        """Wait until an attempt of a job has ended with a code."""

        def is_refused() -> bool:
            return any(code in codes_of(job) for job in self.jobs_now() or ())

        eventually(is_refused, SECONDS, f"an attempt ends with {code}")

    def until_over(self) -> None:
        """Wait until each job has ended."""
        eventually(self._are_over, SECONDS, "each job has ended")

    def codes(self) -> set[str]:
        """Codes of all errors that users could see."""
        return self.witness.codes.union(*(codes_of(job) for job in self.jobs_now() or ()))

    def jobs_now(self) -> list[dict[str, Any]] | None:
        """The jobs with their events; None while the API does not answer."""
        jobs = [self._answer(f"/v1/jobs/{job_id}?after=0") for job_id in self.jobs]
        return None if None in jobs else [job for job in jobs if job is not None]

    def results(self, job_id: str) -> int:
        """How many final adapters are registered for a job."""
        return len(self.site.installation.adapters_of({"id": job_id}))

    def _are_over(self) -> bool:
        jobs = self.jobs_now()
        return jobs is not None and all(job["state"] in FINAL for job in jobs)

    def _progress(self) -> list[Any] | None:
        """A value that changes as soon as a job makes progress; None while the API is not ready."""
        jobs = self.jobs_now() if self._answer("/ready") else None
        return [(job["state"], job["attempt"], job["progress"]) for job in jobs] if jobs else None

    def _answer(self, path: str) -> dict[str, Any] | None:
        try:
            with self.site.installation.connection.client(timeout=30) as client:
                response = client.get(path)
        except httpx.TransportError:
            return None
        return None if response.is_error else dict(response.json())


def codes_of(job: Mapping[str, Any]) -> set[str]:
    """Codes of the errors in a job's events."""
    return {error["code"] for error in errors_of(job)}


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes:
        fault: what is done, for the table.
        make: submits the jobs and makes the fault.
        shown: codes that users have to see.
        layout: kind of installation that it needs.
        attempt: the last attempt of each job, at most; 1: the fault costs no job an attempt.
        resumed: whether the first job continues from a checkpoint.
        loses_connections: whether the API itself goes away.
        seconds: time until work continues after the fault, at most.
        cheap: whether `make long` makes it.
    """

    fault: str
    make: Callable[[TrialRun], None]
    shown: tuple[str, ...] = ()
    layout: Layout = "one-machine"
    attempt: int = 2
    resumed: bool = False
    loses_connections: bool = False
    seconds: float = RECOVERY_SECONDS
    cheap: bool = False

    def run(self, name: str, site: Site) -> Verdict:
        """Make the trial and judge it."""
        run = TrialRun(site, Witness(site.installation))
        verdict = Verdict(name, self.fault)
        try:
            self.make(run)
            run.until_over()
        except CannotTry as error:
            verdict.untried = str(error)
            return verdict
        except AssertionError as error:
            verdict.bad.append(str(error))
        self._judge(run, verdict)
        return verdict

    def _judge(self, run: TrialRun, verdict: Verdict) -> None:
        jobs = eventually(run.jobs_now, SECONDS, "the jobs can be read") or []
        verdict.answers = {what: dict(answers) for what, answers in sorted(run.witness.answers.items())}
        verdict.answers["events"] = dict(Counter(f"`{code}`" for job in jobs for code in codes_of(job)))
        verdict.jobs, verdict.attempts = count_outcomes(jobs), [job["attempt"] for job in jobs]
        verdict.codes = sorted(run.codes())
        verdict.recovery_seconds = run.recovery_seconds
        bad = verdict.bad
        for job in jobs:
            bad += job_faults(job, run.results(job["id"]), run.jobs[job["id"]])
        bad += sorted(set(run.witness.wrong))
        bad += [f"users do not see {code}" for code in self.shown if code not in verdict.codes]
        if max(verdict.attempts) > self.attempt:
            bad.append(f"attempts {verdict.attempts}, more than {self.attempt}")
        if self.resumed and not run.site.installation.resumptions(jobs[0]["id"]):
            bad.append("it began again, without its checkpoint")
        if run.recovery_seconds is None:
            bad.append("work does not go on")
        elif run.recovery_seconds > self.seconds:
            bad.append(f"work goes on {run.recovery_seconds:.0f} s after the fault, wanted {self.seconds:.0f}")
        if not self.loses_connections and any(NO_CONNECTION in answers for answers in verdict.answers.values()):
            bad.append("the API was away")


# -- what is done -------------------------------------------------------------------------------------------------------

QUEUED = 3


def waiting_for_a_disk(run: TrialRun, fault: Callable[[Path], AbstractContextManager[None]], code: str) -> None:
    """Jobs are queued while their run folders cannot be written."""
    runs = run.home / "runs"
    runs.mkdir(exist_ok=True)
    with small_disk(runs):
        with run.suffering(fault(runs)):
            for number in range(QUEUED):
                run.train(f"waits-{number}", publish=False, epochs=1)
            run.until_shown(code)
        run.until_over()


def training_on_a_disk(run: TrialRun, fault: Callable[[Path], AbstractContextManager[None]], code: str) -> None:
    """The same while a job trains."""
    runs = run.home / "runs"
    runs.mkdir(exist_ok=True)
    with small_disk(runs):
        run.train_to(10, publish=False, epochs=LONG_EPOCHS)
        with run.suffering(fault(runs)):
            run.until_shown(code)
        run.until_over()


def publishing_to_a_disk(run: TrialRun, fault: Callable[[Path], AbstractContextManager[None]], code: str) -> None:
    """The storage cannot be written when a job wants to publish."""
    storage = run.home / "storage"
    with small_disk(storage):
        run.train_to(10)
        with run.suffering(fault(storage)):
            run.until_refused(code)
        run.until_over()


def running_job(run: TrialRun, fault: Callable[[Site], AbstractContextManager[Any]], seconds: float) -> None:
    """A fault of some seconds under a job that trains, and still does so afterwards."""
    run.train_to(10, epochs=LONG_EPOCHS)
    with run.suffering(fault(run.site)):
        time.sleep(seconds)


def publishing_job(run: TrialRun, fault: Callable[[Site], AbstractContextManager[Any]], seconds: float) -> None:
    """A fault that a job meets when it publishes."""
    run.train_to(30)
    with run.suffering(fault(run.site)):
        time.sleep(seconds)


def queue_emptied(run: TrialRun) -> None:
    """Valkey forgets every message."""
    run.train_to(1, publish=False)
    for number in range(QUEUED):
        run.train(f"lost-{number}", publish=False, epochs=1)
    with (
        run.suffering(nullcontext()),
        Redis.from_url(run.site.installation.stack.settings["MENS_BROKER_URL"]) as broker,
    ):
        broker.flushall()


def killed(program: str) -> Callable[[Site], AbstractContextManager[None]]:
    """A program that gets SIGKILL; supervisord starts it again."""

    @contextmanager
    def kill(site: Site) -> Iterator[None]:
        site.process(program).kill()
        yield

    return kill


@contextmanager
def trainer_killed(site: Site) -> Iterator[None]:
    """SIGKILL for the trainer, as the kernel does it when memory is short."""
    (trainer,) = site.installation.trainers()
    trainer.kill()
    yield


def clock_goes_forth(run: TrialRun, seconds: int) -> None:
    """The clock moves forward, the worker is lost, and the clock moves back: only the sweep can find its job."""
    assert run.site.clock
    run.train_to(10, epochs=LONG_EPOCHS // 2, publish=False)
    run.train("queued", publish=False, epochs=1)
    with run.suffering(clock_moved(run.site.clock, seconds)):
        time.sleep(OUTAGE_SECONDS)
        run.site.process("worker").kill()


def clock_goes_back(run: TrialRun, seconds: int) -> None:
    """The clock moves back and stays there, and the worker is lost: due work has to continue an hour before it was due."""
    assert run.site.clock
    job_id = run.train_to(10, epochs=LONG_EPOCHS, publish=False)
    run.train("queued", publish=False, epochs=1)
    with clock_moved(run.site.clock, -seconds):
        with run.suffering(nullcontext()):
            # By steps, not seconds: neither a fast nor a slow machine is at the job's end by then.
            run.site.installation.wait_for_step(job_id, 30)
            run.site.process("worker").kill()
        run.until_over()


def replica_hangs(run: TrialRun) -> None:
    """A replica that stops while a job wants to be measured on it."""
    job_id = run.train_to(10)
    with run.suffering(hanging(run.site.process("serving"))):
        run.site.installation.wait(job_id, lambda job: job["stage"] == "publishing" or job["state"] in FINAL)
        time.sleep(OUTAGE_SECONDS)


def template(run: TrialRun, source: str) -> None:
    """A tenant's import with a template that is a bomb; the job behind it waits for it."""
    with run.suffering(nullcontext()):
        run.import_adapter(Code.TEMPLATE_UNSUPPORTED, Code.ADAPTER_TEMPLATE_MISMATCH, template=source)
        run.train("behind", publish=False, epochs=1)
        run.until_over()


def foreign_name(run: TrialRun) -> None:
    """A tensor's name that no database can store."""
    with run.suffering(nullcontext()):
        run.import_adapter(Code.SAFETENSORS_INVALID, surrogate=LONE_SURROGATE)
        run.train("behind", publish=False, epochs=1)


@contextmanager
def table_locked(site: Site) -> Iterator[None]:
    """Somebody's transaction holds the table of jobs."""
    assert site.postgres
    with site.postgres._connect(site.database_url.rpartition("/")[2]) as connection, connection.transaction():
        connection.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        yield


def _hangs(program: str) -> Callable[[Site], AbstractContextManager[None]]:
    return lambda site: hanging(site.process(program))


def _server(name: Literal["postgres", "s3"], fault: Callable[..., AbstractContextManager[None]]) -> Any:
    return lambda site: fault(getattr(site, name))


def _server_hangs(server: Any) -> AbstractContextManager[None]:
    return hanging(psutil.Process(server.process.pid))


TRIALS: dict[str, Trial] = {
    "runs-read-only": Trial(
        "The disk of the run folders is read-only; three jobs are queued",
        partial(waiting_for_a_disk, fault=read_only, code=Code.STORAGE_UNAVAILABLE),
        shown=(Code.STORAGE_UNAVAILABLE,), attempt=1, cheap=True,
    ),
    "runs-full": Trial(
        "The disk of the run folders is full; three jobs are queued",
        partial(waiting_for_a_disk, fault=full, code=Code.STORAGE_FULL),
        shown=(Code.STORAGE_FULL,), attempt=1, cheap=True,
    ),
    "training-read-only": Trial(
        "The disk of the run folders becomes read-only while a job trains",
        partial(training_on_a_disk, fault=read_only, code=Code.STORAGE_UNAVAILABLE),
        shown=(Code.STORAGE_UNAVAILABLE,), resumed=True, cheap=True,
    ),
    "training-full": Trial(
        "The disk of the run folders becomes full while a job trains",
        partial(training_on_a_disk, fault=full, code=Code.STORAGE_FULL),
        shown=(Code.STORAGE_FULL,), resumed=True,
    ),
    "storage-read-only": Trial(
        "The storage becomes read-only before a job publishes",
        partial(publishing_to_a_disk, fault=read_only, code=Code.STORAGE_UNAVAILABLE),
        shown=(Code.STORAGE_UNAVAILABLE,), attempt=6,
    ),
    "storage-full": Trial(
        "The storage becomes full before a job publishes",
        partial(publishing_to_a_disk, fault=full, code=Code.STORAGE_FULL),
        shown=(Code.STORAGE_FULL,), attempt=6,
    ),
    "disk-full": Trial(
        "The one disk with database, queue, runs and storage is full while a job trains",
        partial(running_job, fault=lambda site: full(site.home), seconds=3 * OUTAGE_SECONDS),
        shown=(Code.STORAGE_FULL,), attempt=6, resumed=True,
    ),
    "database-locked": Trial(
        "The SQLite database is locked for longer than a lease while a job trains",
        partial(running_job, fault=lambda site: locked(site.home / "mens.db"), seconds=OUTAGE_SECONDS),
        shown=(Code.DATABASE_UNAVAILABLE,), cheap=True,
    ),
    "queue-emptied": Trial(
        "Valkey loses all messages (`FLUSHALL`); one job trains, three are queued", queue_emptied, attempt=1, cheap=True
    ),
    "queue-killed": Trial(
        "Valkey gets `kill -9` while a job trains", partial(running_job, fault=killed("valkey"), seconds=3), attempt=1
    ),
    "queue-hangs": Trial(
        "Valkey does not respond while a job trains",
        partial(running_job, fault=_hangs("valkey"), seconds=OUTAGE_SECONDS), attempt=1,
    ),
    "api-killed": Trial(
        "The API gets `kill -9` while a job trains",
        partial(running_job, fault=killed("api"), seconds=3), attempt=1, loses_connections=True,
    ),
    "worker-killed": Trial(
        "The worker gets `kill -9` while a job trains", partial(running_job, fault=killed("worker"), seconds=3), resumed=True
    ),
    "trainer-killed": Trial(
        "The trainer gets `kill -9`", partial(running_job, fault=trainer_killed, seconds=3), resumed=True
    ),
    "replica-killed": Trial(
        "The replica gets `kill -9` before a job publishes",
        partial(publishing_job, fault=killed("serving"), seconds=3), shown=(Code.SERVING_UNAVAILABLE,), seconds=REPLICA_RECOVERY_SECONDS,
    ),
    "replica-hangs": Trial(
        "The replica does not respond while a job publishes", replica_hangs, seconds=REPLICA_RECOVERY_SECONDS, attempt=1
    ),
    "template-loops": Trial(
        "A tenant's chat template loops; another job waits behind it", partial(template, source=LOOPING_TEMPLATE), attempt=1
    ),
    "template-takes-memory": Trial(
        "A tenant's chat template doubles a string sixty times", partial(template, source=DOUBLING_TEMPLATE), attempt=1
    ),
    "foreign-name": Trial("A tensor's name has half a surrogate pair", foreign_name, attempt=1, cheap=True),
    "clock-forth": Trial(
        "The clock jumps forward an hour; a job trains, another is queued; the worker gets `kill -9`; the clock goes back",
        partial(clock_goes_forth, seconds=3600), layout="clock", attempt=3, resumed=True, seconds=2 * RECOVERY_SECONDS,
    ),
    "clock-back": Trial(
        "The clock goes back an hour and stays there; a job trains, another is queued; the worker gets `kill -9`",
        partial(clock_goes_back, seconds=3600), layout="clock", attempt=3, resumed=True, seconds=2 * RECOVERY_SECONDS,
    ),
    "database-killed": Trial(
        "PostgreSQL is away while a job trains",
        partial(running_job, fault=_server("postgres", away), seconds=OUTAGE_SECONDS),
        shown=(Code.DATABASE_UNAVAILABLE,), layout="servers",
    ),
    "database-hangs": Trial(
        "PostgreSQL does not respond while a job trains",
        partial(running_job, fault=_server("postgres", _server_hangs), seconds=2 * OUTAGE_SECONDS),
        shown=(Code.DATABASE_UNAVAILABLE,), layout="servers",
    ),
    "table-locked": Trial(
        "PostgreSQL's table of jobs is locked while a job trains",
        partial(running_job, fault=table_locked, seconds=OUTAGE_SECONDS),
        shown=(Code.DATABASE_UNAVAILABLE,), layout="servers",
    ),
    "bucket-killed": Trial(
        "The bucket's server is away when a job publishes",
        partial(publishing_job, fault=_server("s3", away), seconds=3 * OUTAGE_SECONDS),
        shown=(Code.STORAGE_UNAVAILABLE,), layout="servers", attempt=6,
    ),
    "bucket-hangs": Trial(
        "The bucket's server does not respond when a job publishes",
        partial(publishing_job, fault=_server("s3", _server_hangs), seconds=3 * OUTAGE_SECONDS),
        layout="servers", attempt=6,
    ),
}  # fmt: skip
