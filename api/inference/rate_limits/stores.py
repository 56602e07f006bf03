"""Stores of rate limits: Valkey, for all API processes together; the process itself while Valkey does not answer.

Both count alike. Requests are counted by whole seconds: a key's state is sixty numbers at most, whatever its limit, and
``Retry-After``, which has whole seconds, is exact. A slot in Valkey is held until it is released, or until its holder has
not renewed it for a minute, so a process that dies holds none for longer. Slots that are released while Valkey does not
answer: `api/inference/rate_limits/pending_releases.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError  # noqa: A004 — the client's, not the built-in

from api.inference.rate_limits.pending_releases import PendingReleases

WINDOW_SECONDS = 60
HOLD_SECONDS = 60
TIMEOUT_SECONDS = 1.0
AWAY_SECONDS = 10.0
"""How long no request is sent to Valkey after it did not answer."""

ACQUIRE = """
local time = redis.call('TIME')
local second = tonumber(time[1])
local now = second * 1000 + math.floor(tonumber(time[2]) / 1000)
local slot, rate, slots = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local window, hold = tonumber(ARGV[4]), tonumber(ARGV[5])
local used, newest, counts = 0, second, {}

if rate > 0 then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if tonumber(all[i]) <= second - window then
      redis.call('HDEL', KEYS[1], all[i])
    else
      table.insert(counts, {tonumber(all[i]), tonumber(all[i + 1])})
      used = used + tonumber(all[i + 1])
    end
  end
  table.sort(counts, function(a, b) return a[1] < b[1] end)
  if used >= rate then
    local left = used
    for _, count in ipairs(counts) do
      left = left - count[2]
      if left < rate then
        return {'rate', used, (counts[#counts][1] + window) * 1000 - now, (count[1] + window) * 1000 - now}
      end
    end
  end
end

if slots > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= slots then
    return {'slots', used, #counts > 0 and (counts[#counts][1] + window) * 1000 - now or 0, 0}
  end
  redis.call('ZADD', KEYS[2], now + hold * 1000, slot)
  redis.call('EXPIRE', KEYS[2], hold)
end

if rate > 0 then
  redis.call('HINCRBY', KEYS[1], second, 1)
  redis.call('EXPIRE', KEYS[1], window)
end
return {'', used + 1, (second + window) * 1000 - now, 0}
"""
RENEW = """
local time = redis.call('TIME')
local until_ = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1]) * 1000
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""

logger = logging.getLogger(__name__)


class LimitedRequest(NamedTuple):
    """A request of a key that has limits. ``slot`` is the unique name of the slot that it would hold."""

    key_id: str
    slot: str
    requests_per_minute: int | None
    concurrent_requests: int | None


class Refusal(StrEnum):
    """Which limit is reached."""

    RATE = "rate"
    SLOTS = "slots"


class Verdict(NamedTuple):
    """Whether a request is admitted, and the state of its key. Times are in seconds.

    Attributes:
        refusal: None when it is admitted; then it is counted and has its slot.
        used: requests that count now, this one included.
        reset: until none of them counts any more.
        wait: until one more is admitted; only of ``Refusal.RATE``: it is unknown when a slot will be free.
    """

    refusal: Refusal | None
    used: int
    reset: float
    wait: float


class Store(Protocol):
    """Counts requests and holds slots."""

    async def acquire(self, request: LimitedRequest) -> Verdict:
        """Count the request and take its slot, or neither."""

    async def release(self, key_id: str, slot: str) -> None:
        """Free a slot; one that is free already stays so."""

    async def renew(self, key_id: str, slots: Sequence[str]) -> None:
        """Hold slots for longer."""


class ValkeyStore:
    """Counts in Valkey, by its clock; every verb is one round trip.

    Args:
        url: as in ``redis://127.0.0.1:6379/0``.
        window: seconds that requests are counted for.
        hold: seconds after which a slot that is not renewed is free.

    Raises:
        ValueError: the URL is of no kind that can be used.
        redis.exceptions.RedisError: (every verb) it cannot be reached, or refuses.
    """

    def __init__(self, url: str, window: int = WINDOW_SECONDS, hold: int = HOLD_SECONDS) -> None:
        self._client: Redis = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            # An idle connection may have been closed by the server. A slow server does not get the request twice.
            retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
        )
        self._window = window
        self.hold = hold
        self._acquire = self._client.register_script(ACQUIRE)
        self._renew = self._client.register_script(RENEW)

    async def acquire(self, request: LimitedRequest) -> Verdict:
        limits = (request.requests_per_minute or 0, request.concurrent_requests or 0)
        keys = [f"mens:limits:{{{request.key_id}}}:requests", _slots_name(request.key_id)]
        reply = await self._acquire(keys=keys, args=[request.slot, *limits, self._window, self.hold])
        refusal, used, reset, wait = reply
        return Verdict(Refusal(refusal) if refusal else None, used, reset / 1000, wait / 1000)

    async def release(self, key_id: str, slot: str) -> None:
        await self._client.zrem(_slots_name(key_id), slot)

    async def renew(self, key_id: str, slots: Sequence[str]) -> None:
        await self._renew(keys=[_slots_name(key_id)], args=[self.hold, *slots])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class ProcessStore:
    """Counts in this process. Its slots need no renewing: they end with it.

    Args:
        clock: seconds since any moment.
        window: seconds that requests are counted for.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, window: int = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._window = window
        self._counts: dict[str, dict[int, int]] = defaultdict(dict)
        self._slots: dict[str, set[str]] = defaultdict(set)

    async def acquire(self, request: LimitedRequest) -> Verdict:
        now = self._clock()
        counts = self._counts[request.key_id] = {
            second: count for second, count in self._counts[request.key_id].items() if second > int(now) - self._window
        }
        used, rate = sum(counts.values()), request.requests_per_minute
        reset = max(counts) + self._window - now if counts else 0.0
        if rate is not None and used >= rate:
            return Verdict(Refusal.RATE, used, reset, self._free_at(counts, rate) - now)
        held, slots = self._slots[request.key_id], request.concurrent_requests
        if slots is not None and len(held) >= slots:
            return Verdict(Refusal.SLOTS, used, reset, 0.0)
        if slots is not None:
            held.add(request.slot)
        if rate is not None:
            counts[int(now)] = counts.get(int(now), 0) + 1
        return Verdict(None, used + 1, int(now) + self._window - now, 0.0)

    async def release(self, key_id: str, slot: str) -> None:
        self._slots[key_id].discard(slot)

    async def renew(self, key_id: str, slots: Sequence[str]) -> None:
        pass

    def _free_at(self, counts: dict[int, int], rate: int) -> float:
        """When so many of the oldest requests have left the window that fewer than the rate remain."""
        left = sum(counts.values())
        for second in sorted(counts):
            left -= counts[second]
            if left < rate:
                return second + self._window
        raise AssertionError  # a limit is one at least


class SharedStore:
    """Counts in Valkey; while Valkey does not answer, in this process, and tries Valkey again after a while. Never raises.

    Args:
        valkey: None where there is none that can be used.
        away_seconds: how long no request is sent to Valkey after it did not answer.
    """

    def __init__(self, valkey: ValkeyStore | None, away_seconds: float = AWAY_SECONDS) -> None:
        self._valkey = valkey
        self._process = ProcessStore()
        self._away_seconds = away_seconds
        self._away_until = 0.0 if valkey else math.inf
        self._warn_again_at = 0.0
        self._pending = PendingReleases(valkey.release, hold=valkey.hold) if valkey else None

    async def acquire(self, request: LimitedRequest) -> Verdict:
        valkey = self._reachable()
        if valkey is None:
            return await self._process.acquire(request)
        if self._away_until:
            # Valkey was away. This request tries it; the others count in the process meanwhile, and do not wait.
            self._away_until = time.monotonic() + self._away_seconds
        try:
            verdict = await valkey.acquire(request)
        except (RedisError, OSError) as error:
            self._went_away(error)
            if self._pending:
                # Valkey may have taken the slot before it failed, or take it when it reads the request later.
                self._pending.add(request.key_id, request.slot)
            return await self._process.acquire(request)
        self._away_until = 0.0
        if self._pending and not verdict.refusal:
            self._pending.remove(request.slot)
        return verdict

    async def release(self, key_id: str, slot: str) -> None:
        await self._process.release(key_id, slot)
        if valkey := self._reachable():
            try:
                await valkey.release(key_id, slot)
                return
            except (RedisError, OSError) as error:
                self._went_away(error)
        if self._pending:
            self._pending.add(key_id, slot)

    async def renew(self, key_id: str, slots: Sequence[str]) -> None:
        if valkey := self._reachable():
            try:
                await valkey.renew(key_id, slots)
            except (RedisError, OSError) as error:
                self._went_away(error)

    async def close(self) -> None:
        """Close the connections."""
        if self._valkey and self._pending:
            await self._pending.close()
            await self._valkey.close()

    def _reachable(self) -> ValkeyStore | None:
        return self._valkey if time.monotonic() >= self._away_until else None

    def _went_away(self, error: Exception) -> None:
        if time.monotonic() >= self._warn_again_at:
            logger.warning("Valkey does not answer, so this process limits keys for itself: %s", error)
            self._warn_again_at = time.monotonic() + self._away_seconds
        self._away_until = time.monotonic() + self._away_seconds


def _slots_name(key_id: str) -> str:
    return f"mens:limits:{{{key_id}}}:slots"
