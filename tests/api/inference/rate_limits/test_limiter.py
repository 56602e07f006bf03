"""Limits: two API processes share a key's, on a real Valkey; without it each counts for itself."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limit_stores import Ask, ProcessStore, Refusal, SharedStore, ValkeyStore, Verdict
from api.limits import FREE, Limiter, make_limiter
from api.problems import problem_response
from shared.errors import Code, TooMany
from shared.keys import Key
from shared.tenancy import Role
from tests.postgres import free_port
from tests.valkey import Valkey, running_valkey

pytestmark = pytest.mark.network

SLOTS = "mens:limits:{key-a}:slots"


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as valkey:
        yield valkey


def key(rate: int | None = None, slots: int | None = None, name: str = "key-a") -> Key:
    return Key(
        id=name,
        name=name,
        tenant="acme",
        role=Role.VIEWER,
        requests_per_minute=rate,
        concurrent_requests=slots,
        created_at=datetime.now(UTC),
        revoked_at=None,
    )


def limiter(
    url: str, *, window: int = 60, hold: int = 60, renew_seconds: float = 20, away_seconds: float = 10
) -> Limiter:
    """One API process's; it refuses at once."""
    store = SharedStore(ValkeyStore(url, window, hold), away_seconds)
    return Limiter(store, pauses=(), renew_seconds=renew_seconds)


async def refused(limiter: Limiter, key: Key) -> TooMany:
    with pytest.raises(TooMany) as caught:
        await limiter.admit(key)
    return caught.value


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


# -- requests a minute ------------------------------------------------------------------------------------------------


def test_two_processes_share_a_rate(valkey: Valkey) -> None:
    async def ask() -> None:
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

    run(ask)


def test_a_hundred_at_once_do_not_slip_through(valkey: Valkey) -> None:
    async def ask() -> None:
        processes = [limiter(valkey.url) for _ in range(4)]
        asked = [each.admit(key(rate=10, slots=7)) for each in processes for _ in range(25)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        codes = [answer.code for answer in answers if isinstance(answer, TooMany)]
        assert (len(codes), set(codes)) == (93, {Code.CONCURRENCY_LIMITED})  # a refused one takes nothing of the rate
        assert sum(map(int, valkey.client().hvals("mens:limits:{key-a}:requests"))) == 7
        for each in processes:
            await each.close()

    run(ask)


def test_who_waits_as_long_as_it_is_told_gets_through(valkey: Valkey) -> None:
    async def ask() -> None:
        one = limiter(valkey.url, window=3)
        for _ in range(2):
            await one.admit(key(1))
            error = await refused(one, key(1))
            assert 1 <= error.details["retry_after_seconds"] <= 3
            await asyncio.sleep(error.details["retry_after_seconds"])
        await one.close()

    run(ask)


@given(
    rate=st.integers(1, 5),
    steps=st.lists(st.floats(0, 40, allow_nan=False), min_size=1, max_size=40),
)
def test_never_more_than_the_rate_in_a_minute_and_what_it_says_is_true(rate: int, steps: list[float]) -> None:
    now = 0.0
    store = ProcessStore(lambda: now)
    admitted: list[float] = []

    async def ask() -> None:
        nonlocal now
        for step in steps:
            now += step
            verdict = await store.take(Ask("k", "slot", rate, None))
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

    run(ask)


def test_valkey_and_a_process_count_alike(valkey: Valkey) -> None:
    """The same requests, in the same order, get the same verdicts."""

    async def ask() -> None:
        stores = [ValkeyStore(valkey.url), ProcessStore()]
        for number, (rate, slots) in enumerate(
            [(3, 2), (3, 2), (3, 2), (3, 5), (3, 5), (1, 5), (None, 3), (None, 9), (9, None)]
        ):
            verdicts = [await store.take(Ask("k", f"slot-{number}", rate, slots)) for store in stores]
            refusals = [verdict.refusal for verdict in verdicts]
            assert refusals[0] is refusals[1], number
            if rate is not None:
                assert verdicts[0].used == verdicts[1].used
            if refusals[0] is Refusal.RATE:
                assert all(58 <= verdict.wait <= verdict.reset <= 60 for verdict in verdicts)
            if number == 2:
                assert refusals == [Refusal.SLOTS, Refusal.SLOTS]
                for store in stores:
                    await store.give_back("k", "slot-0")
                    await store.give_back("k", "slot-0")
        await stores[0].close()  # type: ignore[attr-defined]

    run(ask)


# -- requests at once -------------------------------------------------------------------------------------------------


def test_two_processes_share_slots(valkey: Valkey) -> None:
    async def ask() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        first, second = await one.admit(key(slots=2)), await other.admit(key(slots=2))
        assert dict(first.headers) == {}
        for each in (one, other):
            assert (await refused(each, key(slots=2))).code is Code.CONCURRENCY_LIMITED
        await first.leave()
        await first.leave()
        async with await other.admit(key(slots=2)):
            await refused(one, key(slots=2))
        third = await one.admit(key(slots=2))
        await second.leave()
        await third.leave()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0
        await one.close()
        await other.close()

    run(ask)


def test_a_process_that_died_holds_its_slots_for_a_while_only_and_a_living_one_as_long_as_it_needs(
    valkey: Valkey,
) -> None:
    async def ask() -> None:
        # Nobody renews the one's: it is dead. The other renews, for longer than a slot is held.
        dead, living = limiter(valkey.url, hold=2, renew_seconds=60), limiter(valkey.url, hold=2, renew_seconds=0.3)
        await dead.admit(key(slots=2))
        mine = await living.admit(key(slots=2))
        await refused(living, key(slots=2))
        await asyncio.sleep(2.5)
        again = await living.admit(key(slots=2))
        await refused(living, key(slots=2))
        await mine.leave()
        await again.leave()
        await asyncio.sleep(0.5)  # renewing brings back none that was given back
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0
        await living.close()
        await dead.close()

    run(ask)


def test_a_slot_that_is_given_back_in_a_moment_is_waited_for(valkey: Valkey) -> None:
    async def ask() -> None:
        one = Limiter(SharedStore(ValkeyStore(valkey.url)), pauses=(0.02,) * 500)
        first = await one.admit(key(slots=1))
        second = asyncio.create_task(one.admit(key(slots=1)))
        await asyncio.sleep(0.05)
        assert not second.done()
        await first.leave()
        await (await second).leave()
        await one.close()

    run(ask)


class Hesitant(SharedStore):
    """Has taken the slot when it is cancelled."""

    def __init__(self, valkey: ValkeyStore) -> None:
        super().__init__(valkey)
        self.taken = asyncio.Event()

    async def take(self, ask: Ask) -> Verdict:
        verdict = await super().take(ask)
        self.taken.set()
        await asyncio.sleep(60)
        return verdict


def test_a_caller_who_is_cancelled_leaves_no_slot_behind(valkey: Valkey) -> None:
    async def cancel() -> None:
        store = Hesitant(ValkeyStore(valkey.url))
        hesitant, quick = Limiter(store, pauses=()), limiter(valkey.url)
        begun = asyncio.Event()

        async def under_way() -> None:
            async with await quick.admit(key(slots=9)):
                begun.set()
                await asyncio.sleep(60)

        tasks = [asyncio.create_task(hesitant.admit(key(slots=9))), asyncio.create_task(under_way())]
        await store.taken.wait()
        await begun.wait()
        assert valkey.client().zcard("mens:limits:{key-a}:slots") == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await hesitant.close()  # waits for what is being given back
        await quick.close()

    run(cancel)
    assert valkey.client().zcard("mens:limits:{key-a}:slots") == 0


# -- without limits, without Valkey -----------------------------------------------------------------------------------


def test_a_key_without_limits_never_touches_valkey(valkey: Valkey) -> None:
    async def ask() -> None:
        one = limiter(valkey.url)
        assert await one.admit(key()) is FREE
        assert dict(FREE.headers) == {}
        await FREE.leave()
        await one.close()

    before = valkey.client().info("stats")["total_connections_received"]
    run(ask)
    assert valkey.client().info("stats")["total_connections_received"] == before + 1  # this look itself


def test_without_valkey_requests_pass_and_each_process_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        one, other = (limiter(f"redis://127.0.0.1:{free_port()}/0") for _ in range(2))
        for each in (one, other):
            admitted = [await each.admit(key(2, slots=2)) for _ in range(2)]
            assert (await refused(each, key(2, slots=2))).code is Code.RATE_LIMITED
            for admission in admitted:
                await admission.leave()
        await one.close()
        await other.close()

    run(ask)
    assert caplog.text.count("Valkey does not answer") == 2


def test_valkey_that_dies_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        port = free_port()
        with running_valkey(tmp_path, port) as before:
            one = limiter(before.url, away_seconds=0.2)
            held = await one.admit(key(slots=1))
        await (await one.admit(key(slots=1))).leave()  # counted here now, where nothing is held yet
        await held.leave()
        assert "Valkey does not answer" in caplog.text
        with running_valkey(tmp_path, port) as after:
            await asyncio.sleep(0.3)
            async with await one.admit(key(slots=1)):
                assert after.client().zcard("mens:limits:{key-a}:slots") == 1
            assert after.client().zcard("mens:limits:{key-a}:slots") == 0
            await one.close()

    run(ask)


def test_valkey_that_takes_connections_but_does_not_answer(valkey: Valkey) -> None:
    async def ask() -> None:
        one = limiter(valkey.url)
        async with await one.admit(key(slots=1)):
            valkey.process.send_signal(signal.SIGSTOP)
            await (await one.admit(key(slots=1))).leave()
        await one.close()

    try:
        run(ask)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_a_slot_that_valkey_did_not_take_back_is_free_soon_after_it_answers_again(valkey: Valkey) -> None:
    """Without a further request of that process: another one finds the slot free."""

    async def ask() -> None:
        one, other = limiter(valkey.url), limiter(valkey.url)
        failing, away = await one.admit(key(slots=2)), await one.admit(key(slots=2))
        valkey.process.send_signal(signal.SIGSTOP)
        await failing.leave()
        await away.leave()  # Valkey is not even asked
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        async with await other.admit(key(slots=1)):
            pass
        await one.close()
        await other.close()

    try:
        run(ask)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_a_refused_request_leaves_no_slot_that_valkey_took_late(valkey: Valkey) -> None:
    async def ask() -> None:
        one = limiter(valkey.url, away_seconds=0)
        valkey.process.send_signal(signal.SIGSTOP)
        await (await one.admit(key(1, slots=1))).leave()  # counted here
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        valkey.client().flushall()  # and not there any more, so that it will admit what this process refuses
        await (await one.admit(key(9, slots=9, name="key-b"))).leave()  # a connection, on which the next is sent
        valkey.process.send_signal(signal.SIGSTOP)
        assert (await refused(one, key(1, slots=1))).code is Code.RATE_LIMITED
        valkey.process.send_signal(signal.SIGCONT)
        assert await soon_free(valkey)
        await one.close()

    try:
        run(ask)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_what_is_owed_is_given_back_as_the_process_ends(valkey: Valkey) -> None:
    async def ask() -> None:
        one = limiter(valkey.url)
        failing, away = await one.admit(key(slots=2)), await one.admit(key(slots=2))
        valkey.process.send_signal(signal.SIGSTOP)
        await failing.leave()
        await away.leave()
        valkey.process.send_signal(signal.SIGCONT)
        assert valkey.client().zcard(SLOTS) == 1
        await one.close()
        assert valkey.client().zcard(SLOTS) == 0

    try:
        run(ask)
    finally:
        valkey.process.send_signal(signal.SIGCONT)


async def soon_free(valkey: Valkey) -> bool:
    """Whether the key's slots are free long before they would be by themselves."""
    for _ in range(60):
        if not valkey.client().zcard(SLOTS):
            return True
        await asyncio.sleep(0.1)
    return False


def test_a_broker_of_another_kind_is_no_reason_not_to_start(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        one = make_limiter("sentinel://127.0.0.1:26379")
        await one.admit(key(1))
        await refused(one, key(1))
        await one.close()

    run(ask)
    assert "each API process limits keys for itself" in caplog.text


# -- what the caller is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"rate": 1}, "may ask models once a minute, and has."),
        ({"rate": 2}, "may ask models 2 times a minute, and has."),
        ({"slots": 1}, "may have 1 request to models under way at once, and has."),
        ({"slots": 2}, "may have 2 requests to models under way at once, and has."),
    ],
)
def test_a_refusal_says_the_limit(limits: dict[str, int], told: str) -> None:
    async def ask() -> None:
        one = Limiter(SharedStore(None), pauses=())
        for _ in range(max(limits.values())):
            await one.admit(key(**limits))
        assert (await refused(one, key(**limits))).message == f"The key 'key-a' {told}"

    run(ask)


def test_headers_of_an_answer_and_of_a_refusal() -> None:
    async def ask() -> tuple[dict[str, str], TooMany, TooMany]:
        one = Limiter(SharedStore(None), pauses=())
        admission = await one.admit(key(2, slots=1))
        return dict(admission.headers), await refused(one, key(2, slots=1)), await refused(one, key(1))

    async def tell() -> None:
        headers, slots, rate = await ask()
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert headers["x-ratelimit-reset-requests"] == "1m0s" or headers["x-ratelimit-reset-requests"].startswith(
            "59."
        )
        answer = problem_response(slots)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        answer = problem_response(rate)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] in ("59", "60")
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert b'"type":"rate_limit_error"' in bytes(answer.body)
        assert b'"code":"RATE_LIMITED"' in bytes(answer.body)
        assert "x-should-retry" not in answer.headers

    run(tell)
