"""Stores of rate limits: Valkey, for all API processes together; the process itself while Valkey does not respond.

Both count in the same way. Requests are counted by whole seconds: a key's state is at most sixty numbers, whatever its
limit, and ``Retry-After``, in whole seconds, is exact. A slot in Valkey is held until it is released, or until its
holder has not renewed it for a minute, so a process that dies does not hold one for longer. Slots that are released
while Valkey does not respond: `api/inference/rate_limits/pending_releases.py`.
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
# A process that was killed releases nothing: its slots become free after this time.
HOLD_SECONDS = 60
# Every limited request waits for Valkey; after this time the process counts on its own.
TIMEOUT_SECONDS = 1.0
AWAY_SECONDS = 10.0
"""How long no request is sent to Valkey after it did not respond."""

ACQUIRE = """
local time = redis.call('TIME')
local second = tonumber(time[1])
local now = second * 1000 + math.floor(tonumber(time[2]) / 1000)
local slot, window, hold = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local states = {}

-- Returns the current count, and the milliseconds until it is zero and until it is below the limit.
local function counted(name, limit)
  if limit == 0 then return 0, 0, 0 end
  local used, counts = 0, {}
  local all = redis.call('HGETALL', name)
  for i = 1, #all, 2 do
    if tonumber(all[i]) <= second - window then
      redis.call('HDEL', name, all[i])
    else
      table.insert(counts, {tonumber(all[i]), tonumber(all[i + 1])})
      used = used + tonumber(all[i + 1])
    end
  end
  table.sort(counts, function(a, b) return a[1] < b[1] end)
  local reset = #counts > 0 and (counts[#counts][1] + window) * 1000 - now or 0
  local left = used
  for _, count in ipairs(counts) do
    if left < limit then break end
    left = left - count[2]
    if left < limit then return used, reset, (count[1] + window) * 1000 - now end
  end
  return used, reset, 0
end

-- First every account is checked, then every account is charged. For each: its requests, its slots, its tokens, and the limits.
for account = 1, #KEYS / 3 do
  local requests, held, tokens = KEYS[3 * account - 2], KEYS[3 * account - 1], KEYS[3 * account]
  local rate, slots, most = tonumber(ARGV[3 * account + 1]), tonumber(ARGV[3 * account + 2]), tonumber(ARGV[3 * account + 3])
  local used, reset, wait = counted(requests, rate)
  local spent, spent_reset, spent_wait = counted(tokens, most)
  if rate > 0 and used >= rate then return {'rate', used, reset, wait, account, spent, spent_reset} end
  if most > 0 and spent >= most then return {'tokens', used, reset, spent_wait, account, spent, spent_reset} end
  if slots > 0 then
    redis.call('ZREMRANGEBYSCORE', held, '-inf', now)
    if redis.call('ZCARD', held) >= slots then return {'slots', used, reset, 0, account, spent, spent_reset} end
  end
  states[account] = {requests, held, rate, slots, used, spent, spent_reset}
end

for _, state in ipairs(states) do
  if state[4] > 0 then
    redis.call('ZADD', state[2], now + hold * 1000, slot)
    redis.call('EXPIRE', state[2], hold)
  end
  if state[3] > 0 then
    redis.call('HINCRBY', state[1], second, 1)
    redis.call('EXPIRE', state[1], window)
  end
end
return {'', states[1][5] + 1, (second + window) * 1000 - now, 0, 1, states[1][6], states[1][7]}
"""
SPEND = """
redis.call('HINCRBY', KEYS[1], redis.call('TIME')[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""
RENEW = """
local time = redis.call('TIME')
local until_ = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1]) * 1000
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""

logger = logging.getLogger(__name__)


class LimitedAccount(NamedTuple):
    """An account with limits: a key, or a tenant with all of its keys. None means unlimited."""

    name: str
    requests_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_minute: int | None = None


class LimitedRequest(NamedTuple):
    """A request that counts for one or more accounts. ``slot`` is the unique name of the slot that it would hold in
    each.
    """

    slot: str
    accounts: tuple[LimitedAccount, ...]

    @property
    def holders(self) -> list[str]:
        """Names of the accounts where it holds a slot."""
        return [account.name for account in self.accounts if account.concurrent_requests is not None]

    @property
    def spenders(self) -> list[str]:
        """Names of the accounts where its tokens count."""
        return [account.name for account in self.accounts if account.tokens_per_minute is not None]


class LimitReached(StrEnum):
    """The limit that was reached."""

    RATE = "rate"
    TOKENS = "tokens"
    SLOTS = "slots"


class LimitDecision(NamedTuple):
    """Decision on a request, and the state of its key. Times are in seconds.

    Attributes:
        refusal: None if it is admitted; it is then counted and has its slot.
        used: requests that count now, this one included.
        reset: time until none of them counts.
        wait: time until one more is admitted; unknown for ``Refusal.SLOTS``.
        account: index of the account that the state describes: the one that refuses, or the first.
        spent: tokens that count now.
        spent_reset: time until none of them counts.
    """

    refusal: LimitReached | None
    used: int
    reset: float
    wait: float
    account: int = 0
    spent: int = 0
    spent_reset: float = 0.0


class Store(Protocol):
    """Counts requests and holds slots."""

    async def acquire(self, request: LimitedRequest) -> LimitDecision:
        """Count the request and take its slot, or neither."""

    async def spend(self, account: str, tokens: int) -> None:
        """Count tokens, from now on."""

    async def release(self, account: str, slot: str) -> None:
        """Free a slot; a slot that is already free stays free."""

    async def renew(self, account: str, slots: Sequence[str]) -> None:
        """Hold slots for longer."""


class ValkeyStore:
    """Counts in Valkey, by its clock; every operation is one round trip.

    Args:
        url: as in ``redis://127.0.0.1:6379/0``.
        window: seconds that requests are counted for.
        hold: seconds after which a slot that is not renewed is free.

    Raises:
        ValueError: the URL's scheme is not supported.
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
        self._spend = self._client.register_script(SPEND)
        self._renew = self._client.register_script(RENEW)

    async def acquire(self, request: LimitedRequest) -> LimitDecision:
        keys, limits = [], []
        for name, rate, slots, tokens in request.accounts:
            keys += [f"mens:limits:{{{name}}}:requests", _slots_name(name), _tokens_name(name)]
            limits += [rate or 0, slots or 0, tokens or 0]
        reply = await self._acquire(keys=keys, args=[request.slot, self._window, self.hold, *limits])
        refusal, used, reset, wait, account, spent, spent_reset = reply
        limit_reached = LimitReached(refusal) if refusal else None
        return LimitDecision(limit_reached, used, reset / 1000, wait / 1000, account - 1, spent, spent_reset / 1000)

    async def spend(self, account: str, tokens: int) -> None:
        await self._spend(keys=[_tokens_name(account)], args=[tokens, self._window])

    async def release(self, account: str, slot: str) -> None:
        await self._client.zrem(_slots_name(account), slot)

    async def renew(self, account: str, slots: Sequence[str]) -> None:
        await self._renew(keys=[_slots_name(account)], args=[self.hold, *slots])

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
        self._tokens: dict[str, dict[int, int]] = defaultdict(dict)
        self._slots: dict[str, set[str]] = defaultdict(set)

    async def acquire(self, request: LimitedRequest) -> LimitDecision:
        now = self._clock()
        # All accounts are checked before any counts, so that a refused request costs nothing. Without an await in
        # between,
        verdicts = [self._check(account, now)._replace(account=index) for index, account in enumerate(request.accounts)]
        if refused := next((verdict for verdict in verdicts if verdict.refusal), None):
            return refused
        # no lock is needed up to here: no other request can run between the check and the count.
        for name, rate, slots, _ in request.accounts:
            if slots is not None:
                self._slots[name].add(request.slot)
            if rate is not None:
                counts = self._counts[name]
                counts[int(now)] = counts.get(int(now), 0) + 1
        reset = int(now) + self._window - now
        return verdicts[0]._replace(used=verdicts[0].used + 1, reset=reset)

    def _check(self, account: LimitedAccount, now: float) -> LimitDecision:
        name, rate, slots, most = account
        counts, tokens = self._current(self._counts, name, now), self._current(self._tokens, name, now)
        used, spent = sum(counts.values()), sum(tokens.values())
        reset = max(counts) + self._window - now if counts else 0.0
        spent_reset = max(tokens) + self._window - now if tokens else 0.0
        state = LimitDecision(None, used, reset, 0.0, 0, spent, spent_reset)
        if rate is not None and used >= rate:
            return state._replace(refusal=LimitReached.RATE, wait=self._free_at(counts, rate) - now)
        if most is not None and spent >= most:
            return state._replace(refusal=LimitReached.TOKENS, wait=self._free_at(tokens, most) - now)
        if slots is not None and len(self._slots[name]) >= slots:
            return state._replace(refusal=LimitReached.SLOTS)
        return state

    def _current(self, kept: dict[str, dict[int, int]], name: str, now: float) -> dict[int, int]:
        """Return counts by second, without those that have left the window."""
        current = {second: count for second, count in kept[name].items() if second > int(now) - self._window}
        kept[name] = current
        return current

    async def spend(self, account: str, tokens: int) -> None:
        second = int(self._clock())
        self._tokens[account][second] = self._tokens[account].get(second, 0) + tokens

    async def release(self, account: str, slot: str) -> None:
        self._slots[account].discard(slot)

    async def renew(self, account: str, slots: Sequence[str]) -> None:
        pass

    def _free_at(self, counts: dict[int, int], rate: int) -> float:
        """Return when enough of the oldest counts will have left the window to bring the rest below the rate."""
        left = sum(counts.values())
        for second in sorted(counts):
            left -= counts[second]
            if left < rate:
                return second + self._window
        raise AssertionError  # a limit is at least one


class SharedStore:
    """Counts in Valkey; while Valkey does not respond, counts in this process, and tries Valkey again later. Never
    raises.

    Args:
        valkey: None if Valkey cannot be used.
        away_seconds: how long Valkey is not tried again after it did not respond.
    """

    def __init__(self, valkey: ValkeyStore | None, away_seconds: float = AWAY_SECONDS) -> None:
        self._valkey = valkey
        self._process = ProcessStore()
        self._away_seconds = away_seconds
        self._away_until = 0.0 if valkey else math.inf
        self._warn_again_at = 0.0
        self._pending = PendingReleases(valkey.release, hold=valkey.hold) if valkey else None

    async def acquire(self, request: LimitedRequest) -> LimitDecision:
        valkey = self._reachable()
        if valkey is None:
            return await self._process.acquire(request)
        if self._away_until:
            # Valkey was unavailable. This request tries it; the others meanwhile count in the process, and do not wait.
            self._away_until = time.monotonic() + self._away_seconds
        try:
            verdict = await valkey.acquire(request)
        except (RedisError, OSError) as error:
            self._went_away(error)
            if self._pending:
                # Valkey may have taken the slot before it failed, or may take it when it reads the request later.
                for name in request.holders:
                    self._pending.add(name, request.slot)
            return await self._process.acquire(request)
        self._away_until = 0.0
        # An earlier try of this request may have failed after Valkey took the slot, and left a release that would
        # free it.
        if self._pending and not verdict.refusal:
            for name in request.holders:
                self._pending.remove(name, request.slot)
        return verdict

    async def release(self, account: str, slot: str) -> None:
        await self._process.release(account, slot)
        if valkey := self._reachable():
            try:
                await valkey.release(account, slot)
                return
            except (RedisError, OSError) as error:
                self._went_away(error)
        if self._pending:
            self._pending.add(account, slot)

    async def spend(self, account: str, tokens: int) -> None:
        if valkey := self._reachable():
            try:
                await valkey.spend(account, tokens)
                return
            except (RedisError, OSError) as error:
                self._went_away(error)
        await self._process.spend(account, tokens)

    async def renew(self, account: str, slots: Sequence[str]) -> None:
        if valkey := self._reachable():
            try:
                await valkey.renew(account, slots)
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
            logger.warning("Valkey does not respond, so this process limits keys on its own: %s", error)
            self._warn_again_at = time.monotonic() + self._away_seconds
        self._away_until = time.monotonic() + self._away_seconds


def _slots_name(account: str) -> str:
    return f"mens:limits:{{{account}}}:slots"


def _tokens_name(account: str) -> str:
    return f"mens:limits:{{{account}}}:tokens"
