"""Readiness: one query to the database and one to Valkey per second, however many clients ask."""

from __future__ import annotations

import asyncio
import threading

import pytest

from api.polling.readiness import DATABASE_SECONDS, MAX_AGE_SECONDS, Readiness
from shared.errors import Code, Unavailable
from shared.worker_registry import WorkerMachine


def soon(seconds: float = 20) -> float:
    """When an answer is due, by the loop's clock."""
    return asyncio.get_running_loop().time() + seconds


class Database:
    """Answers once a test lets it, and counts its calls."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False
        self.answers = threading.Event()
        self.answers.set()

    def ping(self) -> None:
        self.asked += 1
        assert self.answers.wait(20)
        if self.is_away:
            raise Unavailable(Code.DATABASE_UNAVAILABLE, "away")


def test_many_who_wait_ask_once() -> None:
    database = Database()
    database.answers.clear()

    async def test() -> None:
        readiness = Readiness(database.ping, list)
        waiting = [asyncio.create_task(readiness.check(soon())) for _ in range(500)]
        await asyncio.sleep(0)
        database.answers.set()
        await asyncio.gather(*waiting)

    asyncio.run(test())
    assert database.asked == 1


def test_database_that_hangs_is_not_waited_for() -> None:
    database = Database()
    database.answers.clear()

    async def test() -> None:
        readiness = Readiness(database.ping, list)
        for _ in range(3):
            with pytest.raises(Unavailable, match="does not respond"):
                await readiness.check(soon(0.01))
        database.answers.set()
        await readiness.check(soon())

    asyncio.run(test())
    assert database.asked == 1, "those who came later waited for the same answer"


@pytest.mark.parametrize("is_away", [False, True])
def test_a_slow_database_stays_ready_until_it_takes_too_long(*, is_away: bool) -> None:
    """The success before it holds meanwhile; a failure does not turn into one."""
    database, now = Database(), 0.0
    database.is_away = is_away

    async def ask(readiness: Readiness, seconds: float) -> bool:
        try:
            await readiness.check(soon(seconds))
        except Unavailable:
            return False
        return True

    async def test() -> None:
        nonlocal now
        readiness = Readiness(database.ping, list, lambda: now)
        assert await ask(readiness, 20) is not is_away
        database.answers.clear()
        for moment in (MAX_AGE_SECONDS, MAX_AGE_SECONDS + DATABASE_SECONDS - 0.1):
            now = moment
            assert await ask(readiness, 0.01) is not is_away
        now = MAX_AGE_SECONDS + DATABASE_SECONDS
        assert not await ask(readiness, 0.01)
        database.answers.set()
        assert await ask(readiness, 20) is not is_away

    asyncio.run(test())
    assert database.asked == 2


@pytest.mark.parametrize("is_away", [False, True])
def test_an_answer_holds_for_a_second(*, is_away: bool) -> None:
    database, now = Database(), 0.0
    database.is_away = is_away

    async def test() -> list[int]:
        nonlocal now
        readiness, counts = Readiness(database.ping, list, lambda: now), []
        for moment in (0.0, MAX_AGE_SECONDS - 0.1, MAX_AGE_SECONDS):
            now = moment
            (outcome,) = await asyncio.gather(readiness.check(soon()), return_exceptions=True)
            assert isinstance(outcome, Unavailable) is is_away
            counts.append(database.asked)
        return counts

    assert asyncio.run(test()) == [1, 1, 2]


def test_one_who_leaves_takes_the_answer_from_nobody() -> None:
    database = Database()
    database.answers.clear()

    async def test() -> None:
        readiness = Readiness(database.ping, list)
        leaves, stays = (asyncio.create_task(readiness.check(soon())) for _ in range(2))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.sleep(0)
        database.answers.set()
        await stays

    asyncio.run(test())
    assert database.asked == 1


def test_faults_of_workers_are_read_once_and_wait_for_no_valkey(monkeypatch: pytest.MonkeyPatch) -> None:
    full = WorkerMachine(device="cpu", fault="one:1 takes no job: the disk is full.", fault_code="STORAGE_FULL")
    answers, asked, now = threading.Event(), 0, 0.0
    answers.set()
    monkeypatch.setattr("api.polling.readiness.WORKERS_SECONDS", 0.05)

    def machines() -> list[WorkerMachine]:
        nonlocal asked
        asked += 1
        assert answers.wait(20)
        return [full, WorkerMachine(device="cpu")]

    async def test() -> None:
        nonlocal now
        readiness = Readiness(Database().ping, machines, lambda: now)
        assert [await readiness.faulty_machines(soon()) for _ in range(5)] == [[full]] * 5
        answers.clear()
        now = MAX_AGE_SECONDS
        assert await readiness.faulty_machines(soon()) == [full], "the last that are known"
        answers.set()

    asyncio.run(test())
    assert asked == 2
