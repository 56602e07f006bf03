"""Metering: counts what each key uses of each model, from vLLM's own token numbers.

Nothing of it is in a request's path but the taps of `api/taps.py`. What was counted is kept in the process and added to the
database every two seconds; a database that is away gets it later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from pydantic import BaseModel, ValidationError

from api.taps import CompletionEvents, ResponseEvents, Tap, WholeBody
from shared.keys import Key
from shared.usage import Account, Amount, Usage

FLUSH_SECONDS = 2.0
CLOSE_SECONDS = 10.0
"""How long a shutdown waits for the database."""
COMPLETIONS = frozenset({"/v1/chat/completions", "/v1/completions"})
RESPONSES = "/v1/responses"

Count = Callable[[Amount], None]
logger = logging.getLogger(__name__)


class StreamOptions(BaseModel):
    """As vLLM reads them: it takes 1 and "yes" for true too."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Asked(BaseModel):
    """What matters here of a request, as vLLM reads it."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1


class PlainOptions(msgspec.Struct):
    """Stream options of the right types."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PlainlyAsked(msgspec.Struct):
    """A request whose fields have the right types, as they nearly always have: quicker to read."""

    stream: bool | None = False
    stream_options: PlainOptions | None = None
    n: int | None = 1


class Meter:
    """Counts requests and tokens. Everything is called on the event loop's thread.

        body, tap = meter.of(key, model, path, body)
        # a 2xx answer:  yield tap(chunk) for every chunk; at its end  yield tap.end();  always  tap.close()

    A tap that is never closed counts nothing: so do not close it for an answer that is no success.

    Args:
        usage: where the counts are kept.
        interval: seconds between two writes.
    """

    def __init__(self, usage: Usage, interval: float = FLUSH_SECONDS) -> None:
        self._usage = usage
        self._interval = interval
        self._counted: dict[Account, Amount] = {}
        self._writing: dict[Account, Amount] = {}
        self._refused = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def of(self, key: Key, model: str, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Tap]:
        """What to ask a replica, and what its answer has to run through.

        Args:
            model: an adapter's id or a base's name.
            path: of the replica.
            body: the caller's; it is not changed.
        """
        count = partial(self._count, key, model)
        try:
            return _tapped(_read(body), path, body, count)
        except ValidationError:  # vLLM will say what is wrong
            return body, WholeBody(count)

    async def flush(self) -> None:
        """Add what was counted to the database; what it does not take stays counted."""
        counted, self._counted = self._counted, {}
        if not counted:
            return
        self._writing = counted
        try:
            await to_thread.run_sync(self._usage.add, counted)
        except Exception as error:
            for account, amount in counted.items():
                self._add(account, amount)
            if not self._refused:
                logger.warning("the database does not take the usage, which is kept here until it does: %s", error)
            self._refused = True
        else:
            self._refused = False
        finally:
            self._writing = {}

    async def close(self) -> None:
        """Write what is left."""
        self._closing.set()
        if self._task:
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if self._writing:
            logger.error("usage that may be lost, because the database did not answer in time: %s", self._writing)
        if self._counted:
            logger.error("usage that is lost, because the database did not take it: %s", self._counted)

    def _count(self, key: Key, model: str, amount: Amount) -> None:
        self._add(Account(datetime.now(UTC).date().isoformat(), key.id, model, key.tenant), amount)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_flushing())

    def _add(self, account: Account, amount: Amount) -> None:
        self._counted[account] = self._counted.get(account, Amount()) + amount

    async def _keep_flushing(self) -> None:
        is_last = False
        while not is_last:
            with anyio.move_on_after(self._interval):
                await self._closing.wait()
            is_last = self._closing.is_set()
            await self.flush()


def _read(body: dict[str, Any]) -> Asked | PlainlyAsked:
    """Raises:
    ValidationError: vLLM does not take it either.
    """
    try:
        return msgspec.convert(body, PlainlyAsked)
    except msgspec.ValidationError:
        return Asked.model_validate(body)


def _tapped(asked: Asked | PlainlyAsked, path: str, body: dict[str, Any], count: Count) -> tuple[dict[str, Any], Tap]:
    """The body, with usage asked for if that has to be, and a tap that gives the caller what the caller asked for."""
    if not asked.stream or path not in COMPLETIONS:
        return body, ResponseEvents(count) if asked.stream and path == RESPONSES else WholeBody(count)
    options = asked.stream_options or PlainOptions()
    last = bool(options.include_usage)
    every = last and bool(options.continuous_usage_stats)
    tap = CompletionEvents(count, choices=max(asked.n or 1, 1), last=last, every=every)
    with_usage = {**(body.get("stream_options") or {}), "include_usage": True, "continuous_usage_stats": True}
    return {**body, "stream": True, "stream_options": with_usage}, tap
