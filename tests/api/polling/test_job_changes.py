"""The stream of all jobs: each change is sent once, to its own tenant, by one reader for all streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from api.polling import job_changes, other_changes
from api.polling.job_changes import JobChanges, JobSelection, missed_events
from api.polling.other_changes import GONE, ChangeType, ReplicaFacts
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.gates.receipts import NewReceipt
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lists import changes
from shared.database.lists.changes import added_receipts, moved_aliases
from shared.database.names.aliases import Actor, Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.records import Kind
from shared.database.routing import Routing, StandsFor
from shared.database.tenancy import SHARED, visible_to
from shared.errors import Code, Unavailable
from tests.support.builders import claimed, new_adapter, submission

Chunks = AsyncGenerator[bytes, None]
PATIENCE_SECONDS = 20.0
TRAINING = {"kind": "training", "total_steps": 90, "loss": 0.5}


def run(test: Callable[[JobChanges], Awaitable[None]], database: Database, **more: Any) -> None:
    async def started_and_closed() -> None:
        followed = JobChanges(database, 0.01, **more)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(followed)
        finally:
            await followed.close()

    asyncio.run(started_and_closed())


async def next_events(chunks: Chunks, number: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    while len(found) < number:
        found += events_of(await anext(chunks))
    return found


async def settle(chunks: Chunks, polls: int = 4) -> list[tuple[str, Any]]:
    """The events of a few more polls."""
    return [each for _ in range(polls) for each in events_of(await anext(chunks))]


def events_of(chunk: bytes) -> list[tuple[str, Any]]:
    """Type and data of each event of a chunk."""
    events = [dict(line.split(": ", 1) for line in part.splitlines()) for part in chunk.decode().split("\n\n")[:-1]]
    return [(fields["event"], json.loads(fields["data"])) for fields in events]


def test_each_change_comes_once_to_those_who_see_the_job(database: Database) -> None:
    async def test(followed: JobChanges) -> None:
        acme, globex = (followed.chunks(JobSelection(visible_to(tenant))) for tenant in ("acme", "globex"))
        merges = followed.chunks(JobSelection(visible_to("acme"), {Kind.MERGE}))
        await asyncio.gather(settle(acme), settle(globex), settle(merges))
        own, common = (Jobs(database, tenant).submit(submission())[0] for tenant in ("acme", SHARED))
        seen = await next_events(acme, 2)
        assert {(name, data["id"], data["version"]) for name, data in seen} == {
            ("job", own.id, 1),
            ("job", common.id, 1),
        }
        assert [data["id"] for _, data in await next_events(globex, 1)] == [common.id]
        Jobs(database, "acme").cancel(own.id)
        assert [(name, data["state"]) for name, data in await next_events(acme, 1)] == [("job", "cancelled")]
        assert await settle(acme) == await settle(globex) == await settle(merges) == []

    run(test, database)


def test_progress_comes_at_most_every_two_seconds_and_then_the_newest(database: Database) -> None:
    now, leases = 0.0, Leases(database, 60.0)

    async def test(followed: JobChanges) -> None:
        nonlocal now
        chunks = followed.chunks(JobSelection([SHARED]))
        await settle(chunks)
        lease = claimed(Jobs(database), leases)
        seen = await next_events(chunks, 1)
        for step in (1, 2, 3):
            leases.report(lease, progress=TRAINING | {"step": step}, events=[])
            seen += await settle(chunks)
        assert [data["step"] for name, data in seen if name == "progress"] == [1]
        now = job_changes.PROGRESS_SECONDS
        late = await next_events(chunks, 1)
        assert [(name, data["step"], data["train_loss"]) for name, data in late] == [("progress", 3, 0.5)]
        assert set(late[0][1]) == set(job_changes.SHOWN_PROGRESS)
        leases.report(lease, progress=TRAINING | {"step": 4}, events=[])
        leases.finish(lease, {})
        assert (await next_events(chunks, 1))[-1][1]["state"] == "succeeded"
        now += job_changes.PROGRESS_SECONDS
        assert await settle(chunks) == [], "no progress of a job that has ended"

    run(test, database, clock=lambda: now)


def test_progress_of_many_jobs_comes_together_with_one_id(database: Database) -> None:
    now, leases = 0.0, Leases(database, 60.0)

    async def test(followed: JobChanges) -> None:
        nonlocal now
        chunks = followed.chunks(JobSelection([SHARED]))
        await settle(chunks)
        held = [claimed(Jobs(database), leases) for _ in range(3)]
        await next_events(chunks, 3)
        leases.report(held[0], progress=TRAINING | {"step": 1, "loss": 1 / 3}, events=[])
        assert [data["train_loss"] for _, data in await next_events(chunks, 1)] == [0.333333]
        for lease in held[1:]:
            leases.report(lease, progress=TRAINING | {"step": 1}, events=[])
            assert await settle(chunks) == [], "the time of the last batch was less than a second ago"
        now = job_changes.BATCH_SECONDS
        chunk = b""
        while not chunk:
            chunk = await anext(chunks)
        assert {data["id"] for _, data in events_of(chunk)} == {lease.job.id for lease in held[1:]}
        assert chunk.count(b"id: ") == 1
        assert chunk.rstrip().rpartition(b"\n")[2].startswith(b"id: ")

    run(test, database, clock=lambda: now)


def test_stream_without_events_gets_a_chunk_when_a_key_was_revoked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "IDLE_POLLS", 10**9)
    key, _ = Keys(database).create("bot", "acme")

    async def test(followed: JobChanges) -> None:
        chunks = followed.chunks(JobSelection([SHARED]))
        await anext(chunks)
        waiting = asyncio.ensure_future(anext(chunks))
        while True:  # readings before this one may find the counter as it was
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            if not done:
                break
            waiting = asyncio.ensure_future(anext(chunks))
        Keys(database).revoke(key.id)
        assert await waiting == b""
        assert await anext(chunks) == b"", "and once more, when the cache of keys surely knows"

    run(test, database)


def test_many_streams_cost_the_database_what_one_does(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "IDLE_POLLS", 1)

    async def queries_of(streams: int, followed: JobChanges) -> list[int]:
        """Queries of each poll, of one without a change and of one with a change."""
        all_chunks = [followed.chunks(JobSelection([SHARED])) for _ in range(streams)]
        for chunks in all_chunks:
            await settle(chunks)
        statements: list[str] = []

        def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("SELECT") and "FROM" in statement:
                statements.append(statement)

        event.listen(database.engine, "before_cursor_execute", count)
        polls = 0
        for _ in range(20):
            await asyncio.gather(*(anext(chunks) for chunks in all_chunks))
            polls += 1
        event.remove(database.engine, "before_cursor_execute", count)
        for chunks in all_chunks:
            await chunks.aclose()
        return [len(statements), polls]

    async def test(followed: JobChanges) -> None:
        (one, polls), (fifty, _) = [await queries_of(streams, followed) for streams in (1, 50)]
        assert one <= 3 * polls + 6
        assert fifty <= one + 6

    run(test, database)


def test_streams_that_want_the_same_are_sent_the_same_bytes(database: Database) -> None:
    async def test(followed: JobChanges) -> None:
        streams = [followed.chunks(JobSelection([SHARED], kinds)) for kinds in ((), (), (Kind.MERGE,))]
        await asyncio.gather(*map(settle, streams))
        Jobs(database).submit(submission())
        chunks = [b"", b"", b""]
        while not chunks[0]:
            chunks = await asyncio.gather(*map(anext, streams))
        first, second, merges = chunks
        assert first is second
        assert merges == b""

    run(test, database)


def test_stream_that_is_too_far_behind_gets_a_reset(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "LOG_EVENTS", 3)

    async def test(followed: JobChanges) -> None:
        slow, quick = followed.chunks(JobSelection([SHARED])), followed.chunks(JobSelection([SHARED]))
        await asyncio.gather(settle(slow), settle(quick))
        for _ in range(5):
            Jobs(database).submit(submission())
            await next_events(quick, 1)
        assert [name for name, _ in await next_events(slow, 1)] == ["reset"]
        assert await settle(slow) == []

    run(test, database)


def test_change_is_found_after_the_clock_went_back(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = database.now

    async def test(followed: JobChanges) -> None:
        chunks = followed.chunks(JobSelection([SHARED]))
        await settle(chunks)
        Jobs(database).submit(submission())
        await next_events(chunks, 1)
        monkeypatch.setattr(database, "now", lambda session: clock(session) - timedelta(hours=1))
        await settle(chunks)
        Jobs(database).submit(submission())
        assert [name for name, _ in await next_events(chunks, 1)] == ["job"]

    run(test, database)


def test_continued_stream_has_each_job_that_changed_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "OVERLAP", timedelta(0))
    jobs = [Jobs(database, tenant).submit(submission())[0] for tenant in ("acme", "globex", "acme")]
    found = missed_events(database, JobSelection(visible_to("acme")), 0)
    assert [json.loads(each.raw_data or "")["id"] for each in found] == [jobs[0].id, jobs[2].id]
    last = int(found[-1].id or "") + 1
    assert missed_events(database, JobSelection(visible_to("acme")), last) == []
    assert missed_events(database, JobSelection(visible_to("acme"), {Kind.MERGE}), 0) == []
    monkeypatch.setattr(job_changes, "MISSED_JOBS", 1)
    assert [each.event for each in missed_events(database, JobSelection(visible_to("acme")), 0)] == ["reset"]
    assert not changes.changed_jobs(database, None).jobs


def published(database: Database, tenant: str) -> str:
    """A published adapter of a tenant."""
    leases = Leases(database, 60.0)
    adapter = new_adapter(f"demo@{tenant}")
    leases.finish(claimed(Jobs(database, tenant), leases), {}, adapters=[adapter])
    return adapter.id


def receipt_of(database: Database, tenant: str, adapter: str) -> str:
    leases = Leases(database, 60.0)
    lease = claimed(Jobs(database, tenant), leases)
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    receipt = NewReceipt(
        adapter_id=adapter, adapter_digest="1" * 64, incumbent_id=None, incumbent_digest=None, policy_digest="2" * 64,
        serving_digest=None, passed=True, valid_until=moment, receipt={},
    )  # fmt: skip
    return leases.add_receipt(lease, receipt).id


def test_moved_aliases_and_new_receipts_come_to_those_who_see_them(database: Database) -> None:
    adapter = published(database, "acme")
    types = {ChangeType.ALIAS, ChangeType.RECEIPT}

    async def test(followed: JobChanges) -> None:
        acme, globex = (followed.chunks(JobSelection(visible_to(tenant), types=types)) for tenant in ("acme", "globex"))
        jobs = followed.chunks(JobSelection(visible_to("acme"), types={ChangeType.JOB}))
        await asyncio.gather(settle(acme), settle(globex), settle(jobs))
        aliases = Aliases(database, "acme")
        aliases.set("prod", Routing.to(adapter), Actor(id="1", name="alice"))
        moved = await next_events(acme, 1)
        assert [(name, data["name"], data["version"], data["adapter_id"]) for name, data in moved] == [
            ("alias", "prod", 1, adapter)
        ]
        receipt = receipt_of(database, "acme", adapter)
        assert [(name, data["id"], data["passed"]) for name, data in await next_events(acme, 1)] == [
            ("receipt", receipt, True)
        ]
        aliases.delete("prod", Actor(id="1", name="alice"))
        assert [(data["version"], data["adapter_id"]) for _, data in await next_events(acme, 1)] == [(2, None)]
        assert await settle(acme) == await settle(globex) == []
        assert {name for name, _ in await settle(jobs)} <= {"job"}

    run(test, database)


def test_foreign_names_send_no_event_of_an_alias(database: Database) -> None:
    adapter, actor = published(database, "acme"), Actor(id="1", name="alice")
    Aliases(database, "acme").set("prod", Routing.to(adapter), actor)
    names, began = ForeignNames(database, "acme"), Aliases(database, "acme").get("prod").moved_at
    names.set("ft:gpt-4o:x", StandsFor(kind="adapter", name=adapter), actor, bases=())
    names.delete("ft:gpt-4o:x", actor)
    assert [alias.name for alias in moved_aliases(database, began)] == ["prod"]
    Aliases(database, "acme").delete("prod", actor)
    assert [(alias.name, alias.adapter_id) for alias in moved_aliases(database, began)] == [("prod", None)]


def test_a_reading_that_fails_loses_no_alias(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = published(database, "acme")
    failures = iter([True])

    def fail_once(*arguments: Any) -> Any:
        if next(failures, False):
            raise Unavailable(Code.DATABASE_UNAVAILABLE, "The database does not respond.", remedy="Try again.")
        return added_receipts(*arguments)

    async def test(followed: JobChanges) -> None:
        acme = followed.chunks(JobSelection(visible_to("acme"), types={ChangeType.ALIAS}))
        await settle(acme)
        monkeypatch.setattr(other_changes, "added_receipts", fail_once)
        Aliases(database, "acme").set("prod", Routing.to(adapter), Actor(id="1", name="alice"))
        assert [data["name"] for _, data in await next_events(acme, 1)] == ["prod"]

    run(test, database)
    assert next(failures, None) is None


def test_operators_see_replicas(database: Database) -> None:
    up, down = (ReplicaFacts(name="r1", base="tiny", state=state) for state in ("up", "down"))
    now = [up]

    async def test(followed: JobChanges) -> None:
        operator = followed.chunks(JobSelection([SHARED], is_operator=True))
        tenant = followed.chunks(JobSelection([SHARED]))
        await asyncio.gather(settle(operator), settle(tenant))
        now[:] = [down]
        assert await next_events(operator, 1) == [("replica", {"name": "r1", "base": "tiny", "state": "down"})]
        now.clear()
        assert [data["state"] for _, data in await next_events(operator, 1)] == [GONE]
        assert await settle(tenant) == []

    run(test, database, replicas=lambda: list(now))


def test_continued_stream_has_what_was_moved_and_judged_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = published(database, "acme")
    Aliases(database, "acme").set("prod", Routing.to(adapter), Actor(id="1", name="alice"))
    receipt = receipt_of(database, "acme", adapter)
    types = {ChangeType.ALIAS, ChangeType.RECEIPT}
    found = missed_events(database, JobSelection(visible_to("acme"), types=types), 0)
    assert [each.event for each in found] == ["alias", "receipt"]
    assert json.loads(found[1].raw_data or "")["id"] == receipt
    assert missed_events(database, JobSelection(visible_to("globex")), 0) == []
    monkeypatch.setattr(job_changes, "MISSED_JOBS", 1)
    assert [each.event for each in missed_events(database, JobSelection(visible_to("acme")), 0)] == ["reset"]
