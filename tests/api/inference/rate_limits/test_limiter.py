"""The rate limiter: API processes share a key's limits on a real Valkey; without it each counts for itself."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import error_response
from api.inference.rate_limits.limiter import FREE, RateLimiter, make_limiter
from api.inference.rate_limits.stores import (
    Account,
    LimitedRequest,
    ProcessStore,
    Refusal,
    SharedStore,
    ValkeyStore,
    Verdict,
)
from shared.database.keys import Key
from shared.database.tenancy import SHARED, KeyLimits, Role
from shared.errors import Code, TooMany
from tests.support.ports import free_port
from tests.support.valkey import Valkey, running_valkey

pytestmark = pytest.mark.network

SLOTS = "mens:limits:{key-a}:slots"


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey


def key(rate: int | None = None, slots: int | None = None, name: str = "key-a", tokens: int | None = None) -> Key:
    return Key(
        id=name,
        name=name,
        tenant="acme",
        role=Role.VIEWER,
        requests_per_minute=rate,
        concurrent_requests=slots,
        tokens_per_minute=tokens,
        created_at=datetime.now(UTC),
        revoked_at=None,
    )


def limiter(
    url: str, *, window: int = 60, hold: int = 60, renew_seconds: float = 20, away_seconds: float = 10
) -> RateLimiter:
    """The limiter of one API process; it refuses at once."""
    store = SharedStore(ValkeyStore(url, window, hold), away_seconds)
    return RateLimiter(store, pauses=(), renew_seconds=renew_seconds)


async def refused(limiter: RateLimiter, key: Key) -> TooMany:
    with pytest.raises(TooMany) as caught:
        await limiter.admit(key)
    return caught.value


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


# -- requests a minute ------------------------------------------------------------------------------------------------


def test_two_processes_share_the_requests_per_minute(valkey: Valkey) -> None:
    async def check() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        left = [
            (await each.admit(key(4))).headers["x-ratelimit-remaining-requests"] for each in (one, other, other, one)
        ]
        assert left == ["3", "2", "1", "0"]
        for each in (one, other):
            assert (await refused(each, key(4))).code is Code.RATE_LIMITED
        await one.admit(key(4, name="key-b"))  # a key's limits are its own
        await one.close()
        await other.close()

    run(check)


def test_hundred_concurrent_requests_do_not_exceed_the_slots(valkey: Valkey) -> None:
    async def check() -> None:
        processes = [limiter(valkey.url) for _ in range(4)]
        admissions = [each.admit(key(rate=10, slots=7)) for each in processes for _ in range(25)]
        results = await asyncio.gather(*admissions, return_exceptions=True)
        codes = [result.code for result in results if isinstance(result, TooMany)]
        assert (len(codes), set(codes)) == (
            93,
            {Code.CONCURRENCY_LIMITED},
        )  # a refused one does not count towards the rate
        assert sum(map(int, valkey.client().hvals("mens:limits:{key-a}:requests"))) == 7
        for each in processes:
            await each.close()

    run(check)


def test_request_after_retry_after_is_admitted(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url, window=3)
        for _ in range(2):
            await one.admit(key(1))
            error = await refused(one, key(1))
            assert 1 <= error.details["retry_after_seconds"] <= 3
            await asyncio.sleep(error.details["retry_after_seconds"])
        await one.close()

    run(check)


@given(
    rate=st.integers(1, 5),
    steps=st.lists(st.floats(0, 40, allow_nan=False), min_size=1, max_size=40),
)
def test_rate_is_never_exceeded_and_wait_is_exact(rate: int, steps: list[float]) -> None:
    now = 0.0
    store = ProcessStore(lambda: now)
    admitted: list[float] = []

    async def check() -> None:
        nonlocal now
        for step in steps:
            now += step
            verdict = await store.acquire(LimitedRequest("slot", (Account("k", rate, None),)))
            counting = [moment for moment in admitted if int(moment) > int(now) - 60]
            if verdict.refusal is None:
                admitted.append(now)
                assert verdict.used == len(counting) + 1 <= rate
            else:
                assert len(counting) == rate == verdict.used
                wait = math.ceil(verdict.wait)
                assert 1 <= wait <= 60
                later = [moment for moment in counting if int(moment) > int(now + wait) - 60]
                assert len(later) < rate
                sooner = [moment for moment in counting if int(moment) > int(now + wait - 1) - 60]
                assert len(sooner) == rate or int(now + wait - 1) == int(now)

    run(check)


def test_valkey_and_process_stores_return_the_same_verdicts(valkey: Valkey) -> None:
    """The same requests, in the same order, get the same verdicts."""

    async def check() -> None:
        stores = [ValkeyStore(valkey.url), ProcessStore()]
        for number, (rate, slots) in enumerate(
            [(3, 2), (3, 2), (3, 2), (3, 5), (3, 5), (1, 5), (None, 3), (None, 9), (9, None)]
        ):
            verdicts = [
                await store.acquire(LimitedRequest(f"slot-{number}", (Account("k", rate, slots),))) for store in stores
            ]
            refusals = [verdict.refusal for verdict in verdicts]
            assert refusals[0] is refusals[1], number
            if rate is not None:
                assert verdicts[0].used == verdicts[1].used
            if refusals[0] is Refusal.RATE:
                assert all(58 <= verdict.wait <= verdict.reset <= 60 for verdict in verdicts)
            if number == 2:
                assert refusals == [Refusal.SLOTS, Refusal.SLOTS]
                for store in stores:
                    await store.release("k", "slot-0")
                    await store.release("k", "slot-0")
        await stores[0].close()  # type: ignore[attr-defined]

    run(check)


# -- requests at once -------------------------------------------------------------------------------------------------


def test_two_processes_share_slots(valkey: Valkey) -> None:
    async def check() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        first, second = await one.admit(key(slots=2)), await other.admit(key(slots=2))
        assert dict(first.headers) == {}
        for each in (one, other):
            assert (await refused(each, key(slots=2))).code is Code.CONCURRENCY_LIMITED
        await first.release()
        await first.release()
        async with await other.admit(key(slots=2)):
            await refused(one, key(slots=2))
        third = await one.admit(key(slots=2))
        await second.release()
        await third.release()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0
        await one.close()
        await other.close()

    run(check)


def test_slots_of_dead_process_expire(valkey: Valkey) -> None:
    async def check() -> None:
        dead, other = limiter(valkey.url, hold=2, renew_seconds=60), limiter(valkey.url, hold=2)
        await dead.admit(key(slots=1))  # never renewed, as if its process was dead
        await refused(other, key(slots=1))
        await asyncio.sleep(2.5)
        await (await other.admit(key(slots=1))).release()
        await other.close()
        await dead.close()

    run(check)


def test_slots_of_live_process_do_not_expire(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url, hold=2, renew_seconds=0.3)
        held = await one.admit(key(slots=1))
        await asyncio.sleep(2.5)
        await refused(one, key(slots=1))
        await held.release()
        await asyncio.sleep(0.5)  # renewing brings back none that was released
        assert valkey.client().zcard(SLOTS) == 0
        await one.close()

    run(check)


def test_slot_that_is_released_in_a_moment_is_waited_for(valkey: Valkey) -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(ValkeyStore(valkey.url)), pauses=(0.02,) * 500)
        first = await one.admit(key(slots=1))
        second = asyncio.create_task(one.admit(key(slots=1)))
        await asyncio.sleep(0.05)
        assert not second.done()
        await first.release()
        await (await second).release()
        await one.close()

    run(check)


class SlowStore(SharedStore):
    """Is cancelled when it has taken the slot."""

    def __init__(self, valkey: ValkeyStore) -> None:
        super().__init__(valkey)
        self.taken = asyncio.Event()

    async def acquire(self, request: LimitedRequest) -> Verdict:
        verdict = await super().acquire(request)
        self.taken.set()
        await asyncio.sleep(60)
        return verdict


def test_cancelled_caller_holds_no_slot(valkey: Valkey) -> None:
    async def cancel() -> None:
        store = SlowStore(ValkeyStore(valkey.url))
        slow, quick = RateLimiter(store, pauses=()), limiter(valkey.url)
        begun = asyncio.Event()

        async def in_flight() -> None:
            async with await quick.admit(key(slots=9)):
                begun.set()
                await asyncio.sleep(60)

        tasks = [asyncio.create_task(slow.admit(key(slots=9))), asyncio.create_task(in_flight())]
        await store.taken.wait()
        await begun.wait()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await slow.close()  # waits for the releases in flight
        await quick.close()

    run(cancel)
    assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0


# -- without limits, without Valkey -----------------------------------------------------------------------------------


def test_key_without_limits_does_not_connect_to_valkey(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url)
        assert await one.admit(key()) is FREE
        assert dict(FREE.headers) == {}
        await FREE.release()
        await one.close()

    before = valkey.client().info("stats")["total_connections_received"]
    run(check)
    assert valkey.client().info("stats")["total_connections_received"] == before + 1  # the connection of this line


def test_without_valkey_each_process_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        one, other = (limiter(f"redis://127.0.0.1:{free_port()}/0") for _ in range(2))
        for each in (one, other):
            admitted = [await each.admit(key(2, slots=2)) for _ in range(2)]
            assert (await refused(each, key(2, slots=2))).code is Code.RATE_LIMITED
            for admission in admitted:
                await admission.release()
        await one.close()
        await other.close()

    run(check)
    assert caplog.text.count("Valkey does not answer") == 2


def test_valkey_is_used_again_after_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        port = free_port()
        with running_valkey(tmp_path, port) as before:
            one = limiter(before.url, away_seconds=0.2)
            held = await one.admit(key(slots=1))
        await (await one.admit(key(slots=1))).release()  # counted in the process now, where no slot is held yet
        await held.release()
        assert "Valkey does not answer" in caplog.text
        with running_valkey(tmp_path, port) as after:
            await asyncio.sleep(0.3)
            async with await one.admit(key(slots=1)):
                assert after.client().zcard("mens:limits:{key-a}:slots") == 1
            assert after.client().zcard("mens:limits:{key-a}:slots") == 0
            await one.close()

    run(check)


def test_valkey_that_does_not_answer_does_not_block_requests(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url)
        async with await one.admit(key(slots=1)):
            valkey.process.send_signal(signal.SIGSTOP)
            await (await one.admit(key(slots=1))).release()
        await one.close()

    try:
        run(check)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_pending_release_is_done_when_valkey_answers_again(valkey: Valkey) -> None:
    """Without a further request of that process: another process finds the slot free."""

    async def check() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        failing, away = await one.admit(key(slots=2)), await one.admit(key(slots=2))
        valkey.process.send_signal(signal.SIGSTOP)
        await failing.release()
        await away.release()  # no request is sent to Valkey
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        async with await other.admit(key(slots=1)):
            pass
        await one.close()
        await other.close()

    try:
        run(check)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_slot_that_valkey_took_late_for_a_refused_request_is_released(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url, away_seconds=0)
        valkey.process.send_signal(signal.SIGSTOP)
        await (await one.admit(key(1, slots=1))).release()  # counted in the process
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        valkey.client().flushall()  # so that Valkey will admit what this process refuses
        await (
            await one.admit(key(9, slots=9, name="key-b"))
        ).release()  # leaves a connection, on which the next request is sent
        valkey.process.send_signal(signal.SIGSTOP)
        assert (await refused(one, key(1, slots=1))).code is Code.RATE_LIMITED
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        await one.close()

    try:
        run(check)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_pending_releases_are_done_when_the_process_ends(valkey: Valkey) -> None:
    async def check() -> None:
        one = limiter(valkey.url)
        failing, away = await one.admit(key(slots=2)), await one.admit(key(slots=2))
        valkey.process.send_signal(signal.SIGSTOP)
        await failing.release()
        await away.release()
        valkey.process.send_signal(signal.SIGCONT)
        assert valkey.client().zcard(SLOTS) == 1
        await one.close()
        assert valkey.client().zcard(SLOTS) == 0

    try:
        run(check)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


async def soon_free(valkey: Valkey) -> bool:
    """Whether the key's slots are free long before they would be by themselves."""
    for _ in range(60):
        if not valkey.client().zcard(SLOTS):
            return True
        await asyncio.sleep(0.1)
    return False


def test_broker_of_another_kind_limits_each_process_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        one = make_limiter("sentinel://127.0.0.1:26379")
        await one.admit(key(1))
        await refused(one, key(1))
        await one.close()

    run(check)
    assert "each API process limits keys for itself" in caplog.text


# -- what the caller gets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"rate": 1}, "1 request to models a minute"),
        ({"rate": 2}, "2 requests to models a minute"),
        ({"slots": 1}, "1 request to models in flight at once"),
        ({"slots": 2}, "2 requests to models in flight at once"),
    ],
)
def test_refusal_message_names_the_limit(limits: dict[str, int], message: str) -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=())
        for _ in range(max(limits.values())):
            await one.admit(key(**limits))
        assert (await refused(one, key(**limits))).message == f"The key 'key-a' has reached its limit of {message}."

    run(check)


def test_headers_of_responses_and_refusals() -> None:
    async def admit() -> tuple[dict[str, str], TooMany, TooMany]:
        one = RateLimiter(SharedStore(None), pauses=())
        admission = await one.admit(key(2, slots=1))
        return dict(admission.headers), await refused(one, key(2, slots=1)), await refused(one, key(1))

    async def check() -> None:
        headers, slots, rate = await admit()
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert headers["x-ratelimit-reset-requests"] == "1m0s" or headers["x-ratelimit-reset-requests"].startswith(
            "59."
        )
        response = error_response(slots)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.headers["x-ratelimit-remaining-requests"] == "1"
        response = error_response(rate)
        assert response.status_code == 429
        assert response.headers["retry-after"] in ("59", "60")
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert b'"type":"rate_limit_error"' in bytes(response.body)
        assert b'"code":"RATE_LIMITED"' in bytes(response.body)
        assert "x-should-retry" not in response.headers

    run(check)


# -- tenants --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shared", [True, False])
def test_key_and_tenant_are_charged_together_or_not_at_all(valkey: Valkey, is_shared: bool) -> None:
    limits = KeyLimits(requests_per_minute=3, concurrent_requests=2)

    async def check() -> None:
        store = SharedStore(ValkeyStore(valkey.url)) if is_shared else SharedStore(None)
        one = RateLimiter(store, pauses=(), tenant_limits=limits)
        first = await one.admit(key(2, name="key-a"))
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        second = await one.admit(key(name="key-b"))  # a key without limits of its own
        assert not second.headers
        by_slots = await refused(one, key(2, name="key-a"))
        assert (by_slots.code, "tenant 'acme'" in by_slots.message) == (Code.CONCURRENCY_LIMITED, True)
        await first.release()
        third = await one.admit(key(2, name="key-a"))
        assert third.headers["x-ratelimit-remaining-requests"] == "0", "the refused one was not charged"
        await second.release()
        by_rate = await refused(one, key(9, name="key-c"))
        assert (by_rate.code, "tenant 'acme'" in by_rate.message) == (Code.RATE_LIMITED, True)
        await third.release()
        if is_shared:
            assert valkey.client().zcard("mens:limits:{tenant:acme}:slots") == 0
        await one.close()

    run(check)


def test_shared_has_no_limits_of_a_tenant() -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=(), tenant_limits=KeyLimits(requests_per_minute=1))
        free = key().model_copy(update={"tenant": SHARED})
        assert [await one.admit(free) for _ in range(3)] == [FREE] * 3

    run(check)


# -- tokens a minute --------------------------------------------------------------------------------------------------


async def spend(limiter: RateLimiter, key: Key, tokens: int) -> Mapping[str, str]:
    """One request that is answered with so many tokens; its headers."""
    admission = await limiter.admit(key)
    admission.spend(tokens)
    await asyncio.gather(*limiter._background)
    return admission.headers


def test_two_processes_share_the_tokens_per_minute(valkey: Valkey) -> None:
    async def check() -> None:
        one, other, limited = limiter(valkey.url), limiter(valkey.url), key(tokens=100)
        first, second = await spend(one, limited, 60), await spend(other, limited, 60)
        left = "x-ratelimit-remaining-tokens"
        assert (first["x-ratelimit-limit-tokens"], first[left], second[left]) == ("100", "100", "40")
        assert second["x-ratelimit-reset-tokens"].endswith("s")
        error = await refused(one, limited)
        assert (error.code, error.details["limit"], error.details["remaining_tokens"]) == (
            Code.RATE_LIMITED,
            "tokens",
            0,
        )
        assert 1 <= error.details["retry_after_seconds"] <= 60
        assert "100 tokens a minute" in error.message
        await one.admit(key(tokens=100, name="key-b"))
        await one.admit(key(rate=5))  # the same key without that limit
        await one.close()
        await other.close()

    run(check)


def test_tokens_of_all_keys_of_a_tenant_count_together() -> None:
    async def check() -> None:
        one = RateLimiter(SharedStore(None), pauses=(), tenant_limits=KeyLimits(tokens_per_minute=10))
        await spend(one, key(name="key-a"), 10)
        assert "tenant 'acme'" in (await refused(one, key(name="key-b"))).message
        await one.close()

    run(check)


def test_request_is_admitted_when_its_tokens_have_left_the_window(valkey: Valkey) -> None:
    async def check() -> None:
        one, limited = limiter(valkey.url, window=2), key(tokens=5)
        await spend(one, limited, 7)
        error = await refused(one, limited)
        await asyncio.sleep(error.details["retry_after_seconds"])
        await one.admit(limited)
        await one.close()

    run(check)


def test_tokens_count_in_the_process_while_valkey_is_away() -> None:
    async def check() -> None:
        one, limited = limiter(f"redis://127.0.0.1:{free_port()}/0"), key(tokens=5)
        await spend(one, limited, 5)
        await refused(one, limited)
        await one.close()

    run(check)


@given(steps=st.lists(st.tuples(st.floats(0, 40, allow_nan=False), st.integers(0, 9)), min_size=1, max_size=30))
def test_wait_for_tokens_is_exact(steps: list[tuple[float, int]]) -> None:
    now = 0.0
    store, request = ProcessStore(lambda: now), LimitedRequest("slot", (Account("k", None, None, 10),))

    async def check() -> None:
        nonlocal now
        for pause, tokens in steps:
            now += pause
            verdict = await store.acquire(request)
            if verdict.refusal is None:
                await store.spend("k", tokens)
                continue
            assert verdict.refusal is Refusal.TOKENS
            free = now + verdict.wait
            now = free - 0.01
            assert (await store.acquire(request)).refusal is Refusal.TOKENS
            now = free + 0.001
            assert (await store.acquire(request)).refusal is None

    asyncio.run(check())
