"""An evaluation run: its items in order, several at once, each result stored as it arrives. Start reading here.

Stored results are not requested again: an attempt that continues a killed one starts with the items that have no
result.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from shared.artifacts.storage import Storage
from shared.checkers.contained import ContainedCheckers
from shared.database.callers.keys import Keys
from shared.database.evaluation.items import EvalItems, NewItem
from shared.database.leases import Lease, Leases
from shared.database.tenancy import Role
from shared.errors import Code, JobFailed, LeaseLost, NotFound, Unavailable
from shared.evaluation.items import read_items
from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.results import RunOutcome, Totals, outcome_of
from shared.evaluation.types import ItemResult, SourceItem
from shared.graders.grading import has_code, require_compilers
from shared.graders.remote_models import RemoteModels
from shared.graders.types import LabelModel, ScoreModel
from shared.job_progress import EvaluationProgress
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import weakest
from shared.sandbox.probe import report_of_machine
from worker.evaluation.answers import Judged, Tools, judge_item
from worker.evaluation.gateway import GatewayClient
from worker.settings import WorkerSettings

# One transaction for many answers; a worker that is killed requests at most these again.
STORE_SECONDS = 1.0
STORE_ITEMS = 64
MOST_WAITING = 1024
"""Largest number of results that wait for an unavailable database before the attempt ends."""
POLL_SECONDS = 0.2
SANDBOXED_AT_ONCE = 4
"""Largest number of items whose code runs concurrently, if the machine has at least as many cores; each item may take 2
GB.
"""
READ_AHEAD = 2
"""Number of items that are read ahead per running item: enough that no thread is idle while a batch is stored."""

Judge = Callable[[int, int, SourceItem], Judged]
"""Judges an item: its index, the index of the answer to it, and the item."""


class EvaluatingJob(Protocol):
    """The interface that an evaluation needs from the attempt that runs it (`worker/jobs/attempt.py`)."""

    settings: WorkerSettings
    leases: Leases
    storage: Storage
    lease: Lease

    def report(self, *, progress: dict[str, Any] | None = None) -> None:
        """Write progress. Raises LeaseLost."""

    def raise_if_stopped(self) -> None:
        """Raise LeaseLost, or the exception that ends a paused or cancelled attempt."""


def evaluate_model(attempt: EvaluatingJob, plan: EvaluationPlan, run_id: str) -> RunOutcome:
    """Run and judge every item of a run that has no result yet, and return the outcome of the whole run.

    Args:
        attempt: the attempt that executes the run; the items are written under its lease.
        plan: the run's plan.
        run_id: from `Leases.open_run`; for an ``evaluate`` job, the job's id.

    Raises:
        JobFailed: ``EVAL_UNAVAILABLE``: ``MENS_API_URL`` is not set.
        LeaseLost: another attempt owns the job. Also the exceptions of ``raise_if_stopped``.
    """
    items = EvalItems(attempt.leases.database)
    progress = _Progress(attempt, plan, run_id, items)
    if plan.answers > progress.totals.done:
        with (
            _open_gateway(attempt, plan) as gateway,
            ContainedCheckers() as checkers,
            _open_sandbox(attempt.settings, plan) as sandbox,
            RemoteModels(attempt.settings.named_models, attempt.settings.grader_embeddings) as remote,
            attempt.storage.local_file(plan.items.sha256) as path,
        ):
            progress.totals.sandbox = weakest([progress.totals.sandbox, sandbox.level if sandbox else None])
            todo = _todo(plan, read_items(path), items.positions(run_id))
            tools = Tools(checkers, remote, sandbox)
            judge = partial(judge_item, plan, gateway.post, tools)
            _judge_all(attempt, judge, plan.samples, gateway, todo, progress)
    progress.report()
    results = (ItemResult.model_validate(item.result) for item in items.all(run_id))
    return outcome_of(run_id, plan, progress.totals, results)


class _Progress:
    """Results that wait to be stored, the totals up to them, and their rate."""

    def __init__(self, attempt: EvaluatingJob, plan: EvaluationPlan, run_id: str, items: EvalItems) -> None:
        self._attempt, self._run_id, self._total = attempt, run_id, plan.answers
        self.totals = Totals.model_validate(items.totals(run_id) or Totals.of(plan))
        self._waiting: list[NewItem] = []
        self._began = self._stored_at = time.monotonic()
        self._first = self.totals.done

    def add(self, position: int, judged: Judged) -> None:
        """Count a result, which is stored with the next ones."""
        result = judged.result
        self.totals.add(result, judged.judges, judged.unrepeatable)
        stored = result.model_dump(mode="json")
        self._waiting.append(NewItem(position=position, status=result.status, result=stored))

    def store_when_due(self) -> None:
        """Store the waiting results once a second, or sooner if there are many.

        Raises:
            LeaseLost: nothing was stored.
        """
        if len(self._waiting) >= STORE_ITEMS or time.monotonic() - self._stored_at >= STORE_SECONDS:
            self.store()

    def store(self, *, is_last: bool = False) -> None:
        """Store the waiting results and report progress. While the database is unavailable, they keep waiting, except
        after the last item.

        Raises:
            LeaseLost: nothing was stored.
            Unavailable: the database has been unavailable for too long.
        """
        self._stored_at = time.monotonic()
        if not self._waiting:
            return
        totals = self.totals.model_dump(mode="json")
        try:
            self._attempt.leases.store_items(self._attempt.lease, self._run_id, self._waiting, totals)
        except Unavailable:
            if is_last or len(self._waiting) > MOST_WAITING:
                raise
            return
        # Only after the commit, so that results that were not stored are stored by the next call.
        self._waiting = []
        self.report()

    def report(self) -> None:
        """Report progress. Raises LeaseLost."""
        self._attempt.report(progress=self._facts())

    def _facts(self) -> dict[str, Any]:
        done, seconds = self.totals.done, time.monotonic() - self._began
        rate = (done - self._first) / seconds if seconds else 0.0
        return EvaluationProgress(
            items_done=done,
            items_total=self._total,
            items_errored=self.totals.errored,
            items_per_second=round(rate, 3),
            eta_seconds=round((self._total - done) / rate, 1) if rate else None,
        ).model_dump()


class _InFlight:
    """Items that threads are answering and judging."""

    def __init__(self, judge: Judge, samples: int, pool: ThreadPoolExecutor) -> None:
        self._judge_item, self._samples, self._pool = judge, samples, pool
        self._finished: queue.SimpleQueue[tuple[int, Judged | BaseException]] = queue.SimpleQueue()
        self.count = 0

    def submit(self, position: int, source: SourceItem) -> None:
        self.count += 1
        self._pool.submit(self._judge, position, source)

    def take(self) -> list[tuple[int, Judged | BaseException]]:
        """Return the finished items, after waiting briefly for the first."""
        taken: list[tuple[int, Judged | BaseException]] = []
        with suppress(queue.Empty):
            while self.count:
                taken.append(self._finished.get_nowait() if taken else self._finished.get(timeout=POLL_SECONDS))
                self.count -= 1
        return taken

    def _judge(self, position: int, source: SourceItem) -> None:
        try:
            outcome: Judged | BaseException = self._judge_item(*divmod(position, self._samples), source)
        except BaseException as error:
            # The thread that counts the results raises the error, after it has counted those that arrived with it.
            outcome = error
        self._finished.put((position, outcome))


def _judge_all(
    attempt: EvaluatingJob,
    judge: Judge,
    samples: int,
    gateway: GatewayClient,
    todo: Iterator[tuple[int, SourceItem]],
    progress: _Progress,
) -> None:
    """Judge items in several threads; this thread stores their results.

    Args:
        judge: requests an answer to an item and judges it.
        samples: number of answers per item.
        gateway: connection to the API.
        todo: positions and items without a result.
        progress: receives the results.
    """
    threads = attempt.settings.evaluation_concurrency
    with ThreadPoolExecutor(threads, thread_name_prefix="evaluation") as pool:
        in_flight = _InFlight(judge, samples, pool)
        try:
            while True:
                attempt.raise_if_stopped()
                while in_flight.count < threads * READ_AHEAD and (following := next(todo, None)):
                    in_flight.submit(*following)
                if not in_flight.count:
                    break
                _add(in_flight.take(), progress)
                progress.store_when_due()
            progress.store(is_last=True)
        except LeaseLost:
            # Another attempt owns the run: what this one stored now could overwrite its results.
            raise
        except BaseException:
            # A pause, a cancel or an outage: answers in progress are still taken, so that they are not requested again.
            _drain(attempt, gateway, in_flight, progress)
            raise
        finally:
            # Without this, the end of the block would wait for threads that still read, until their timeouts.
            gateway.abort()


def _add(results: list[tuple[int, Judged | BaseException]], progress: _Progress) -> None:
    """Count the results; raise the first error after the results that arrived with it are counted."""
    for position, judged in results:
        if isinstance(judged, Judged):
            progress.add(position, judged)
    for _, judged in results:
        if isinstance(judged, BaseException):
            raise judged


def _drain(attempt: EvaluatingJob, gateway: GatewayClient, in_flight: _InFlight, progress: _Progress) -> None:
    """Send no further requests, and store the results that arrive within the time that a stop allows."""
    gateway.stop_waiting()
    deadline = time.monotonic() + attempt.settings.stop_grace_seconds
    while in_flight.count and time.monotonic() < deadline:
        for position, judged in in_flight.take():
            if isinstance(judged, Judged):
                progress.add(position, judged)
    progress.store()


def _todo(plan: EvaluationPlan, items: Iterator[SourceItem], stored: set[int]) -> Iterator[tuple[int, SourceItem]]:
    """Yield positions without a result, and their items."""
    for item_index, item in enumerate(items):
        for position in range(item_index * plan.samples, (item_index + 1) * plan.samples):
            if position not in stored:
                yield position, item


@contextmanager
def _open_sandbox(settings: WorkerSettings, plan: EvaluationPlan) -> Iterator[Sandbox | None]:
    """Open the sandbox for code criteria; yield None and start nothing if the run has no such criteria."""
    if not any(map(has_code, plan.testing_criteria)):
        yield None
        return
    with Sandbox.open(
        report_of_machine(settings.sandbox), parallel=min(SANDBOXED_AT_ONCE, os.cpu_count() or 1)
    ) as opened:
        require_compilers(plan.testing_criteria, opened)
        yield opened


@contextmanager
def _open_gateway(attempt: EvaluatingJob, plan: EvaluationPlan) -> Iterator[GatewayClient]:
    """Open the connection to the models of a run, which may have none."""
    if not plan.models and not any(
        isinstance(criterion, LabelModel | ScoreModel) for criterion in plan.testing_criteria
    ):
        with GatewayClient(attempt.settings.api_url, "", attempt.settings.evaluation_concurrency) as gateway:
            yield gateway
        return
    with open_models(attempt) as gateway:
        yield gateway


@contextmanager
def open_models(attempt: EvaluatingJob) -> Iterator[GatewayClient]:
    """Open the connection to the models, with a key of the job's tenant that is valid as long as this attempt.

    Raises:
        JobFailed: ``EVAL_UNAVAILABLE``: ``MENS_API_URL`` is not set.
    """
    url, threads = attempt.settings.api_url, attempt.settings.evaluation_concurrency
    if not url:
        raise JobFailed(
            Code.EVAL_UNAVAILABLE,
            "The worker does not know the API's address, so it cannot send requests to a model.",
            remedy="Set MENS_API_URL for the worker and restart it.",
        )
    key, secret = attempt.leases.mint_key(attempt.lease, Role.VIEWER)
    try:
        with GatewayClient(url, secret, threads) as gateway:
            yield gateway
    finally:
        with suppress(Unavailable, NotFound):  # the sweep does it, or has done it
            Keys(attempt.leases.database).revoke(key.id)
