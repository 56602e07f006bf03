"""Usage metering: counts each key's use of each model, from vLLM's own token numbers.

Only the taps of `api/inference/usage/taps.py` run in a request's path. The counts are kept in the process and added to
the database every two seconds; if the database does not respond, they are added later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from pydantic import BaseModel, ValidationError

from api.inference.response_shape import in_openais_shape, response_in_openais_shape
from api.inference.usage.taps import CompletionEvents, ResponseEvents, Tap, WholeBody
from shared.database.callers.key_records import Key
from shared.database.usage import Amount, Usage, UsageAccount

# A process that is killed loses at most the usage of this time.
FLUSH_SECONDS = 2.0
CLOSE_SECONDS = 10.0
"""Longest wait of a shutdown for the database."""
COMPLETIONS = frozenset({"/v1/chat/completions", "/v1/completions"})
RESPONSES = "/v1/responses"

logger = logging.getLogger(__name__)


class StreamOptions(BaseModel):
    """Stream options as vLLM reads them: it takes 1 and "yes" for true too."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class StreamFields(BaseModel):
    """The fields of a request that decide how its usage is counted, as vLLM reads them."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1


class PlainOptions(msgspec.Struct):
    """Stream options of the right types."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PlainStreamFields(msgspec.Struct):
    """The same fields with the exact types, which requests nearly always have: msgspec reads them faster."""

    stream: bool | None = False
    stream_options: PlainOptions | None = None
    n: int | None = 1


class Meter:
    """Counts requests and tokens. Every method is called on the event loop's thread.

        body, tap = meter.of(key, model, path, body)
        # a 2xx response:  send tap(chunk) for every chunk; at its end  send tap.end();  always  tap.close()

    A tap that is never closed counts nothing, so it is not closed for an unsuccessful response.

    Args:
        usage: stores the counts.
        interval: seconds between two writes.
    """

    def __init__(self, usage: Usage, interval: float = FLUSH_SECONDS) -> None:
        self._usage = usage
        self._interval = interval
        self._counted: dict[UsageAccount, Amount] = {}
        self._writing: dict[UsageAccount, Amount] = {}
        self._write_failed = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def of(
        self,
        key: Key,
        model: str,
        path: str,
        body: dict[str, Any],
        spend: Callable[[int], None] = lambda _: None,
        observe: Callable[[Amount], None] = lambda _: None,
    ) -> tuple[dict[str, Any], Tap]:
        """Return the body for the replica, which requests usage if vLLM would not return it, and the tap of the
        response.

        The caller gets only what it requested.

        Args:
            model: an adapter's id or a base's name.
            path: path on the replica.
            body: the caller's body; it is not changed.
            spend: called with the tokens of the prompt and the answer together, when the tap is closed.
            observe: called with the amount at the same time.
        """

        def count(amount: Amount) -> None:
            self._count(key, model, amount)
            spend(amount.prompt_tokens + amount.completion_tokens)
            observe(amount)

        try:
            fields: StreamFields | PlainStreamFields = msgspec.convert(body, PlainStreamFields)
        except msgspec.ValidationError:
            try:
                fields = StreamFields.model_validate(body)
            except ValidationError:  # vLLM refuses it too, and reports the fault
                return body, WholeBody(count)
        if not fields.stream:
            return body, WholeBody(count, response_in_openais_shape if path == RESPONSES else in_openais_shape)
        if path not in COMPLETIONS:
            return body, ResponseEvents(count) if path == RESPONSES else WholeBody(count)
        options = fields.stream_options or PlainOptions()
        keep_last = bool(options.include_usage)
        keep_every = keep_last and bool(options.continuous_usage_stats)
        tap = CompletionEvents(count, choices=max(fields.n or 1, 1), keep_last=keep_last, keep_every=keep_every)
        with_usage = {**(body.get("stream_options") or {}), "include_usage": True, "continuous_usage_stats": True}
        return {**body, "stream": True, "stream_options": with_usage}, tap

    async def flush(self) -> None:
        """Add the counts to the database; counts that the database does not accept are kept."""
        # Taken out at once: requests that end during the write count for the next one.
        counted, self._counted = self._counted, {}
        if not counted:
            return
        # Named in the log if the process ends before the database has answered.
        self._writing = counted
        try:
            await to_thread.run_sync(self._usage.add, counted)
        except Exception as error:
            # After an error of any kind, put the counts back: usage that was counted must not be lost.
            for account, amount in counted.items():
                self._add(account, amount)
            if not self._write_failed:
                logger.warning(
                    "the database does not accept the usage, which is kept in memory until it does: %s", error
                )
            self._write_failed = True
        else:
            self._write_failed = False
        finally:
            self._writing = {}

    async def close(self) -> None:
        """Write the remaining counts."""
        self._closing.set()
        if self._task:
            # Not `wait_for`, which would cancel the task: its thread would still write, and the counts would be lost
            # or doubled.
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if self._writing:
            logger.error("usage that may be lost, because the database did not answer in time: %s", self._writing)
        if self._counted:
            logger.error("usage that is lost, because the database did not accept it: %s", self._counted)

    def _count(self, key: Key, model: str, amount: Amount) -> None:
        self._add(UsageAccount(datetime.now(UTC).date().isoformat(), key.id, model, key.tenant), amount)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_flushing())

    def _add(self, account: UsageAccount, amount: Amount) -> None:
        self._counted[account] = self._counted.get(account, Amount()) + amount

    async def _keep_flushing(self) -> None:
        is_last = False
        while not is_last:
            with anyio.move_on_after(self._interval):
                await self._closing.wait()
            # Read before the flush, so that the last flush writes everything counted until `close`.
            is_last = self._closing.is_set()
            await self.flush()
