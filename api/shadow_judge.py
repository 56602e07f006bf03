"""Judges shadow traffic: compares a shadow's answer with the one that the caller got, by the criteria of an eval.

Judging runs outside the request's path, and no content is stored: an answer is graded in a thread and dropped, and only
counts remain, added to the database once a second. After each addition the e-process is updated
(`shared/statistics/sequential.py`); once it shows that the shadow is worse, copying stops.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from anyio import CapacityLimiter, from_thread, to_thread

from api.grader_sandboxes import GraderSandboxes
from api.inference.cache_salt import with_cache_salt
from api.inference.gateway import choose_model
from api.inference.judged_copies import CHAT, MAX_ANSWER_BYTES, JudgedCopy
from api.inference.lookup_cache import LookupCache
from api.inference.replicas.failover import Failover
from api.inference.request_validation import validate_chat
from shared.checkers.contained import ContainedCheckers
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.gates.shadow_comparisons import PairCounts, ShadowComparisons, ShadowPair
from shared.errors import Code, JobFailed, MensError
from shared.evaluation.prompts import read_response
from shared.evaluation.types import Criterion, EvalSpec
from shared.graders.grading import OF_THE_ANSWER, grade, has_code, is_passed
from shared.sandbox.client import Sandbox
from shared.statistics.sequential import is_worse

# One transaction per second at most, however many copies are judged.
STORE_SECONDS = 1.0
MOST_CHARACTERS = 32_000
"""Largest number of characters of both answers together: graders read them in this process."""
KEPT_EVALS = 256

logger = logging.getLogger(__name__)


class ShadowJudge:
    """Judges the shadow copies that one API process sends.

    Args:
        database: contains the evals and stores the counts.
        lookup: resolves the names of judge models, as the request's tenant sees them.
        failover: sends the requests to them. Like the copies, these requests do not count toward the
            limits or usage of any key.
        sandboxes: run code criteria.
        cache_secret: keeps tenants apart in vLLM's prefix cache.
    """

    def __init__(
        self,
        database: Database,
        lookup: LookupCache,
        failover: Failover,
        sandboxes: GraderSandboxes,
        cache_secret: str,
    ) -> None:
        self._database, self._lookup, self._failover = database, lookup, failover
        self._sandboxes, self._cache_secret = sandboxes, cache_secret
        self._checkers = ContainedCheckers()
        self._threads = CapacityLimiter(2)
        self._criteria: dict[tuple[str, str], list[Criterion]] = {}
        self._waiting: dict[tuple[str, ShadowPair], PairCounts] = {}
        self._decided: set[tuple[str, ShadowPair]] = set()
        self._storing: asyncio.Task[None] | None = None

    def has_decided(self, tenant: str, pair: ShadowPair) -> bool:
        """Return whether this process has seen that a pair is decided."""
        return (tenant, pair) in self._decided

    async def judge(self, copy: JudgedCopy, answer: bytes | None) -> None:
        """Judge one copy and count it. Any failure is counted as an error, and nothing is raised."""
        try:
            counts = await self._judged(copy, answer)
        except MensError as error:
            counts = PairCounts(errored=1, last_error=str(error.code))
        except Exception:
            # A bug in judging one copy must not end the task that judges the others.
            logger.exception("a copy for %s could not be judged", copy.pair.candidate_id)
            counts = PairCounts(errored=1, last_error=str(Code.INTERNAL_ERROR))
        key = copy.tenant, copy.pair
        self._waiting[key] = self._waiting.get(key, PairCounts()).plus(counts)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_soon())

    async def close(self) -> None:
        """Store the waiting counts, and end the process that checks code."""
        if self._storing:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
        await self._store()
        await to_thread.run_sync(self._checkers.__exit__, None, None, None)

    async def _judged(self, copy: JudgedCopy, answer: bytes | None) -> PairCounts:
        incumbent_answer = copy.answer.completion()
        if incumbent_answer is None or answer is None:
            raise JobFailed(Code.SERVING_FAILED, "One of the two answers cannot be judged.")
        samples = [read_response("chat", body).sample for body in (incumbent_answer, _completion(answer))]
        if sum(len(sample["output_text"]) for sample in samples) > MOST_CHARACTERS:
            raise JobFailed(Code.SERVING_FAILED, f"The answers have more than {MOST_CHARACTERS} characters.")
        criteria = await self._criteria_of(copy.tenant, copy.pair.eval_id)
        lent: AbstractAsyncContextManager[Sandbox | None] = nullcontext()
        if any(map(has_code, criteria)):
            lent = self._sandboxes.lend(copy.tenant)
        async with lent as sandbox:
            old, new = await to_thread.run_sync(self._passes, copy, criteria, samples, sandbox, limiter=self._threads)
        return PairCounts(wins=int(new > old), losses=int(old > new), ties=int(old == new))

    def _passes(
        self, copy: JudgedCopy, criteria: list[Criterion], samples: list[dict[str, Any]], sandbox: Sandbox | None
    ) -> list[bool]:
        """Return, for each answer, whether it passes every criterion; runs in a thread."""

        def ask(question: dict[str, Any]) -> dict[str, Any]:
            return from_thread.run(self._ask, copy.tenant, question)

        def passes(criterion: Criterion, sample: dict[str, Any]) -> bool:
            try:
                return is_passed(criterion, grade(criterion, item, sample, ask, self._checkers, sandbox).score)
            except MensError as error:
                if error.code in OF_THE_ANSWER:
                    return False
                raise

        item = {"messages": copy.messages}
        return [all(passes(criterion, sample) for criterion in criteria) for sample in samples]

    async def _ask(self, tenant: str, question: dict[str, Any]) -> dict[str, Any]:
        """Return the completion of a judge model, resolved by the names of the request's tenant."""
        body = validate_chat(question)
        choice = await choose_model(self._lookup, tenant, body)
        salted = with_cache_salt(body, self._cache_secret, tenant)
        response = await self._failover.first_response(CHAT, salted, choice.model)
        try:
            raw = bytearray()
            async for chunk in response:
                raw += chunk
                if len(raw) > MAX_ANSWER_BYTES:
                    break
        finally:
            response.close()
        if response.is_error:
            raise JobFailed(Code.SERVING_FAILED, f"The judge model returned the status {response.status}.")
        return _completion(bytes(raw))

    async def _criteria_of(self, tenant: str, eval_id: str) -> list[Criterion]:
        """Return the criteria of an eval, which never change."""
        if (kept := self._criteria.get((tenant, eval_id))) is not None:
            return kept
        evaluation = await to_thread.run_sync(Evals(self._database, tenant).get, eval_id)
        if len(self._criteria) >= KEPT_EVALS:
            self._criteria.clear()
        criteria = self._criteria[tenant, eval_id] = EvalSpec.model_validate(evaluation.spec).testing_criteria
        return criteria

    async def _store_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(STORE_SECONDS)
            await self._store()

    async def _store(self) -> None:
        """Add the waiting counts to the database; counts that the database does not accept keep waiting."""
        waiting, self._waiting = self._waiting, {}
        for (tenant, pair), counts in waiting.items():
            try:
                stored = await to_thread.run_sync(ShadowComparisons(self._database, tenant).add, pair, counts, is_worse)
            except MensError as error:
                logger.warning("comparisons of shadows are delayed: %s", error)
                self._waiting[tenant, pair] = counts.plus(self._waiting.get((tenant, pair), PairCounts()))
                continue
            if stored.worse_at and (tenant, pair) not in self._decided:
                self._decided.add((tenant, pair))
                logger.warning(
                    "shadow alias=%s adapter=%s is worse than %s (%d losses, %d wins): copying has stopped",
                    pair.alias,
                    pair.candidate_id,
                    pair.incumbent_id,
                    stored.losses,
                    stored.wins,
                )


def _completion(raw: bytes) -> dict[str, Any]:
    try:
        completion = json.loads(raw)
    except ValueError:
        completion = None
    if not isinstance(completion, dict):
        raise JobFailed(Code.SERVING_FAILED, "The response is not a JSON object.")
    return completion
