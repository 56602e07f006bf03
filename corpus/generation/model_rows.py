"""Rows with values that models write: many rows at a time, written in the order of their numbers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from corpus.filters.eval_items import EvalContent, read_items
from corpus.filters.redactors import Redactors
from corpus.generation.asking import ModelAsker, RowDropped
from corpus.generation.budget import BudgetSpent, Spending, SpendingMeter
from corpus.generation.columns import GenerationRecipe
from corpus.generation.endpoints import ModelEndpoint, find_endpoints, require_terms
from corpus.generation.methods.answer import answer
from corpus.generation.methods.back_translate import back_translate
from corpus.generation.methods.judge import judge
from corpus.generation.methods.method import Method, MethodTools, RowRequests
from corpus.generation.methods.prefer import prefer
from corpus.generation.methods.self_align import TEST_LIMITS, self_align
from corpus.generation.methods.self_instruct import OF_PEOPLE, ROUND, InstructionPool, self_instruct
from corpus.generation.model_columns import (
    AnswerColumn,
    BackTranslateColumn,
    JudgeColumn,
    ModelColumn,
    PreferColumn,
    SelfAlignColumn,
    SelfInstructColumn,
)
from corpus.generation.output_filters import MadeRow, OutputFilters
from corpus.generation.responses import ResponseStore
from corpus.generation.samplers import Sampler, lines_of
from corpus.mixing.mix_file import recipe_invalid
from corpus.verdicts import VerdictCode
from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, InvalidRequest, MensError
from shared.graders.grading import check_runnable, has_code
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Choice
from shared.sandbox.probe import probe
from shared.settings import RemoteModel

RESPONSES = "responses"
"""Name of the folder of responses, inside the folder of the rows."""
CONCURRENCY = 8
_FILTERED_AT_ONCE = 64
MadeLater = Future[tuple[MadeRow, dict[str, Any]]]
"""A row and the values of its columns."""
_METHODS: dict[type[ModelColumn], Method] = {
    AnswerColumn: answer,
    JudgeColumn: judge,
    PreferColumn: prefer,
    BackTranslateColumn: back_translate,
    SelfInstructColumn: self_instruct,
    SelfAlignColumn: self_align,
}


@dataclass(frozen=True)
class ModelAccess:
    """Access to models, as set by the environment and the command line.

    Attributes:
        remote: models of other servers, by name.
        installation: returns the endpoint of a model that the installation serves.
        accepts_terms: whether the user states that the terms of remote models permit training.
        concurrency: largest number of concurrent requests; it does not affect the rows.
        redaction_key: key of the corpus, used for the placeholders of personal data and the digests of requests.
        sandbox: sandbox for code of models and graders.
        evals: evals whose items must not be in a row.
        progress: called after each row with the number of rows that are done.
    """

    remote: Mapping[str, RemoteModel]
    installation: Callable[[str], ModelEndpoint]
    redaction_key: bytes
    accepts_terms: bool = False
    concurrency: int = CONCURRENCY
    sandbox: Choice = "auto"
    evals: Sequence[EvalContent] = ()
    progress: Callable[[int], object] = lambda _done: None


@dataclass
class RunReport:
    """Outcome of a run.

    Attributes:
        dropped: number of rows left out, by code.
        first_refusal: the server's reason for the first refused request.
        spent: amount used by all responses of the folder.
        stopped: the bound of the budget that ended the run.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""
    spent: Spending = field(default_factory=Spending)
    stopped: BudgetSpent | None = None


@dataclass(frozen=True)
class ModelRows:
    """Makes rows from a recipe with columns that models write.

    Args:
        folder: the recipe's folder.
        samplers: samplers of the columns without a model, by name.
        finish: makes the row and its provenance from the values of its columns.
    """

    recipe: GenerationRecipe
    folder: Path
    access: ModelAccess
    samplers: Mapping[str, Sampler]
    finish: Callable[[int, Mapping[str, Any]], MadeRow]

    def make(self, target: Path, count: int, report: RunReport) -> Iterator[MadeRow]:
        """Yield the rows that pass the filters, by ascending number; the report is complete after the last one.

        Args:
            target: folder of the rows, which also holds the responses.

        Raises:
            MensError: the error that ended the run; all responses so far are stored.
        """
        endpoints = self.endpoints()
        key = self.access.redaction_key
        # A redactor is called from one thread: one set for the threads that ask, which share a lock, and one for this thread.
        redactors, others = (Redactors(self.recipe.redact, key, self.folder) for _ in range(2))
        filters = OutputFilters(others, self.recipe.dedup, self.evals(), count)
        with ExitStack() as stack:
            sandbox, checkers = self._judges(stack)
            store = stack.enter_context(ResponseStore(target / RESPONSES))
            meter = SpendingMeter(self.recipe.budget, self.recipe.prices, chain(store, store.failed))
            asker = stack.enter_context(ModelAsker(endpoints, store, meter, redactors, key, self.access.concurrency))
            report.spent = meter.spent
            pool = stack.enter_context(ThreadPoolExecutor(self.access.concurrency))
            # Before the pool waits for its threads, which must not send requests that still wait for a retry.
            stack.callback(asker.stop)
            batch: list[MadeRow] = []
            for made in self._in_order(
                pool, MethodTools(asker, self.recipe.seed, checkers, sandbox, self.pools()), count, report
            ):
                batch.append(made)
                if len(batch) == _FILTERED_AT_ONCE:
                    yield from _filtered(filters, batch, report)
                    batch = []
            yield from _filtered(filters, batch, report)

    def endpoints(self) -> dict[str, ModelEndpoint]:
        """Return the endpoint of each model."""
        endpoints = find_endpoints(self.recipe.models, self.access.remote, self.access.installation)
        require_terms(endpoints.values(), self.recipe.terms, accepted=self.access.accepts_terms)
        return endpoints

    def evals(self) -> list[EvalContent]:
        """Return the evals whose items must not be in a row."""
        files = self.recipe.decontaminate.files if self.recipe.decontaminate else []
        return [*self.access.evals, *(read_items(self.folder / file) for file in files)]

    def _judges(self, stack: ExitStack) -> tuple[Sandbox | None, ContainedCheckers]:
        """Start the graders' sandbox and checkers, and check that each grader can run, before any request is sent."""
        graders = [grader for column in self.recipe.model_columns for grader in column.graders]
        checkers = stack.enter_context(ContainedCheckers())
        sandbox = None
        if any(map(has_code, graders)) or any(column.runs_code for column in self.recipe.model_columns):
            limits = TEST_LIMITS if any(column.runs_code for column in self.recipe.model_columns) else None
            sandbox = stack.enter_context(Sandbox.open(probe(self.access.sandbox), limits))
        for grader in graders:
            check_runnable(grader, sandbox)
        return sandbox, checkers

    def _in_order(
        self, pool: ThreadPoolExecutor, tools: MethodTools, count: int, report: RunReport
    ) -> Iterator[MadeRow]:
        """Yield the rows that were not dropped, in order. A bounded number of rows is made ahead."""
        waiting: deque[MadeLater] = deque()
        begun = done = 0
        while True:
            begun = self._begin(pool, tools, begun, count, waiting)
            if not waiting:
                return
            try:
                made, values = waiting.popleft().result()
                _add_instructions(tools, values)
            except RowDropped as drop:
                report.dropped[drop.code] += 1
                report.first_refusal = report.first_refusal or drop.note
            except BudgetSpent as spent:
                report.stopped = spent
                tools.asker.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                return
            except BaseException:
                tools.asker.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            else:
                yield made
            done += 1
            self.access.progress(done)

    def _begin(
        self, pool: ThreadPoolExecutor, tools: MethodTools, number: int, count: int, waiting: deque[MadeLater]
    ) -> int:
        """Start the rows from a number on; return the number of the first row that was not started."""
        while number < count and len(waiting) < 4 * self.access.concurrency:
            if tools.pools and number % ROUND == 0:
                # The examples of a round are the instructions of all rows before it.
                if waiting:
                    break
                for instructions in tools.pools.values():
                    instructions.begin_round()
            waiting.append(pool.submit(self._make, number, tools))
            number += 1
        return number

    def pools(self) -> dict[str, InstructionPool]:
        """Return the instructions written by people, by column.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: a column has fewer than six.
        """
        pools = {}
        for number, column in enumerate(self.recipe.columns):
            if isinstance(column, SelfInstructColumn):
                seeds = list(dict.fromkeys(lines_of(self.folder / column.seeds, column.name)))
                if len(seeds) < OF_PEOPLE:
                    message = f"{column.seeds} has {len(seeds)} different instructions; {OF_PEOPLE} are needed."
                    raise recipe_invalid(message, f"columns.{number}.seeds", None)
                pools[column.name] = InstructionPool(seeds)
        return pools

    def _make(self, number: int, tools: MethodTools) -> tuple[MadeRow, dict[str, Any]]:
        row = RowRequests(number, tools)
        for column in self.recipe.columns:
            if isinstance(column, ModelColumn):
                row.values[column.name] = _METHODS[type(column)](column, row)
            else:
                row.values[column.name] = self.samplers[column.name](number, row.values)
        made = self.finish(number, row.values)
        made.provenance.generator = row.generators
        made.provenance.redactions = row.redactions
        made.provenance.checks = row.checks
        return made, row.values


def _add_instructions(tools: MethodTools, values: Mapping[str, Any]) -> None:
    """Add the instructions of the next row in order to the pools.

    Raises:
        RowDropped: ``NOT_NEW``: an instruction is similar to that of an earlier row that was made at the same time.
    """
    for name, pool in tools.pools.items():
        if not pool.is_new(values[name], in_round=True):
            raise RowDropped(VerdictCode.NOT_NEW)
    for name, pool in tools.pools.items():
        pool.add(values[name])


def _filtered(filters: OutputFilters, batch: list[MadeRow], report: RunReport) -> Iterator[MadeRow]:
    for verdict in filters.judge(batch):
        if isinstance(verdict, MadeRow):
            yield verdict
        else:
            report.dropped[verdict] += 1


def no_rows(report: RunReport) -> MensError:
    """Return the error for a run that left out every row."""
    counts = ", ".join(f"{code} {number:,}" for code, number in sorted(report.dropped.items()))
    reason = f" The first refused request: {report.first_refusal}." if report.first_refusal else ""
    return InvalidRequest(
        Code.CORPUS_OUTPUT_EMPTY,
        f"All rows were left out: {counts}.{reason}",
        remedy="Correct the prompts, checks or filters of the recipe. Stored responses are not requested again.",
    )
