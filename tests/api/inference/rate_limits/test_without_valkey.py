"""Limits while Valkey is unavailable, does not respond, or is not needed: each process counts separately."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from api.inference.rate_limits.limiter import FREE, make_limiter
from cli.standalone.ports import free_port
from shared.errors import Code
from tests.support.rate_limits import SLOTS, key, limiter, refused, run
from tests.support.valkey import Valkey, running_valkey

pytestmark = pytest.mark.network


@pytest.fixture
def valkey_seconds() -> float:
    """Valkey is stopped here, and each request then waits for it so long."""
    return 2.0


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
    assert caplog.text.count("Valkey does not respond") == 2


def test_valkey_is_used_again_after_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        port = free_port()
        with running_valkey(tmp_path, port) as before:
            one = limiter(before.url, away_seconds=0.2)
            held = await one.admit(key(slots=1))
        await (await one.admit(key(slots=1))).release()  # counted in the process now, where no slot is held yet
        await held.release()
        assert "Valkey does not respond" in caplog.text
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
    """Return whether the key's slots are free long before they would expire."""
    for _ in range(300):
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
    assert "each API process limits keys on its own" in caplog.text
