"""The lookup cache on both databases: it never hides a change, and it bridges a short outage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event, text

from api.inference import lookup_cache
from api.inference.lookup_cache import LookupCache
from shared.base_models.catalog import Catalog, save_catalog
from shared.database.callers.keys import Keys
from shared.database.change_counter import Changes
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.routing import Routing
from shared.database.tenancy import SHARED
from shared.errors import Code, InvalidRequest, Unauthenticated, Unavailable
from tests.support.builders import base_entry, claimed, new_adapter

BY = Actor(id="key-1", name="alice")
ONE, TWO, HIDDEN = "demo@1", "demo@2", "demo@3"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def adapters(database: Database) -> None:
    made = [new_adapter(name, final=name == ONE, published=name != HIDDEN) for name in (ONE, TWO, HIDDEN)]
    leases = Leases(database, 60.0)
    leases.finish(claimed(Jobs(database), leases), {}, adapters=made)


@pytest.fixture
def elsewhere(database_url: str) -> Iterator[Database]:
    """The same database, in what might be another process."""
    database = Database(database_url)
    yield database
    database.close()


def run(test: Callable[[LookupCache], Awaitable[None]], database: Database) -> None:
    async def started_and_closed() -> None:
        lookup = LookupCache(database, Path("none"))
        try:
            lookup.start()
            await test(lookup)
        finally:
            await lookup.close()

    asyncio.run(started_and_closed())


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110 (no event exists to wait for)
            await asyncio.sleep(0.01)


class Queries:
    """The SELECT statements that a database gets, except those for the change counter."""

    def __init__(self, database: Database) -> None:
        self.statements: list[str] = []
        event.listen(database.engine, "before_cursor_execute", self._record)

    def _record(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT") and "changes" not in statement:
            self.statements.append(statement)


async def to(lookup: LookupCache, name: str = "prod", tenant: str = SHARED) -> str | None:
    found = await lookup.find(tenant, name)
    return found.routing.main if found and found.routing else None


def test_cached_keys_and_names_are_not_read_again(database: Database, adapters: None) -> None:
    key, secret = Keys(database).create("bot", "acme")
    Aliases(database).set("prod", Routing.to(ONE), BY)
    queries, numbers = Queries(database), list[int]()

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        for _ in range(3):
            assert await lookup.authenticate(secret) == key
            assert [await to(lookup), await to(lookup, TWO)] == [ONE, TWO]
            numbers.append(len(queries.statements))
        assert numbers == [numbers[0]] * 3
        assert numbers[0] >= 3, "the first lookups read the database"

    run(test, database)


def test_concurrent_lookups_of_one_key_read_it_once(database: Database) -> None:
    key, secret = Keys(database).create("bot", "acme")
    queries = Queries(database)

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        left = asyncio.create_task(lookup.authenticate(secret))
        others = [asyncio.create_task(lookup.authenticate(secret)) for _ in range(50)]
        await asyncio.sleep(0)
        left.cancel()
        assert await asyncio.gather(*others) == [key] * 50
        assert len([statement for statement in queries.statements if "FROM api_keys" in statement]) == 1
        refused = await asyncio.gather(*(lookup.authenticate("mens-none") for _ in range(5)), return_exceptions=True)
        assert {type(each) for each in refused} == {Unauthenticated}

    run(test, database)


def test_rendered_lists_are_kept_until_a_change_and_within_their_bytes(
    database: Database, elsewhere: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_cache, "MAX_RENDERED_BYTES", 10)
    made: list[str] = []

    def render(name: str, size: int) -> Callable[[], bytes]:
        return lambda: made.append(name) or b"x" * size  # type: ignore[func-returns-value]

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        many = await asyncio.gather(*(lookup.rendered("small", render("small", 8)) for _ in range(20)))
        assert many == [b"x" * 8] * 20
        for _ in range(2):
            assert await lookup.rendered("large", render("large", 8)) == b"x" * 8
        assert made == ["small", "large", "large"]
        Aliases(elsewhere).set("prod", Routing.to(ONE), BY)

        async def is_rendered_again() -> bool:
            await lookup.rendered("small", render("small", 8))
            return made.count("small") > 1

        await eventually(is_rendered_again)

    run(test, database)


async def has_counter(lookup: LookupCache) -> bool:
    """Return whether the counter has been read."""
    return lookup._count is not None


def test_unknown_keys_and_names_are_looked_up_each_time(
    database: Database, elsewhere: Database, adapters: None
) -> None:
    keys = Keys(elsewhere)

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        with pytest.raises(Unauthenticated):
            await lookup.authenticate("mens-no")
        assert await to(lookup) is None
        assert await to(lookup, HIDDEN) is None, "never published"
        Aliases(elsewhere).set("prod", Routing.to(ONE), BY)
        _, secret = keys.create("new")
        assert await to(lookup) == ONE, "at once, although another process made it"
        assert await lookup.authenticate(secret)

    run(test, database)


def test_tenants_own_name_comes_before_shared_one(database: Database, adapters: None) -> None:
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(ONE), BY)

    async def test(lookup: LookupCache) -> None:
        assert [await to(lookup), await to(lookup, tenant="acme")] == [ONE, ONE]
        aliases.of("acme").set("prod", Routing.to(TWO), BY)
        assert [await to(lookup), await to(lookup, tenant="acme")] == [ONE, TWO]
        assert await to(lookup, tenant="other") == ONE

    run(test, database)


def test_own_changes_are_visible_at_once(database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_cache, "POLL_SECONDS", 3600.0)
    aliases, keys = Aliases(database), Keys(database)

    async def test(lookup: LookupCache) -> None:
        key, secret = keys.create("bot")
        for round_ in range(25):
            wanted = (ONE, TWO)[round_ % 2]
            await asyncio.to_thread(aliases.set, "prod", Routing.to(wanted), BY)
            assert await asyncio.gather(*(to(lookup) for _ in range(4))) == [wanted] * 4
        aliases.rollback("prod", BY)
        assert await to(lookup) == TWO
        aliases.delete("prod", BY)
        assert await to(lookup) is None
        assert await lookup.authenticate(secret) == key
        keys.revoke(key.id)
        with pytest.raises(Unauthenticated):
            await lookup.authenticate(secret)

    run(test, database)


def test_late_lookup_does_not_cache_an_old_routing(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup reads the old routing before the move, and returns with it after the move."""
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(ONE), BY)
    has_read, may_return = threading.Event(), threading.Event()

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        read = lookup._read_destination

        def slowly(tenant: str, name: str) -> Routing | None:
            routing = read(tenant, name)
            has_read.set()
            assert may_return.wait(PATIENCE_SECONDS)
            return routing

        monkeypatch.setattr(lookup, "_read_destination", slowly)
        late = asyncio.create_task(to(lookup))
        await asyncio.to_thread(has_read.wait, PATIENCE_SECONDS)
        await asyncio.to_thread(aliases.set, "prod", Routing.to(TWO), BY)
        await lookup._refresh()  # the move is noticed before the reader returns
        may_return.set()
        assert await late == ONE, "it began before the move"
        assert await to(lookup) == TWO

    run(test, database)


def test_changes_of_other_processes_become_visible(database: Database, elsewhere: Database, adapters: None) -> None:
    key, secret = Keys(elsewhere).create("bot")
    Aliases(elsewhere).set("prod", Routing.to(ONE), BY)

    async def refused(lookup: LookupCache) -> bool:
        try:
            return not await lookup.authenticate(secret)
        except Unauthenticated:
            return True

    async def moved(lookup: LookupCache) -> bool:
        return await to(lookup) == TWO

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        assert await to(lookup) == ONE
        assert await lookup.authenticate(secret) == key
        Aliases(elsewhere).set("prod", Routing.to(TWO), BY)
        Keys(elsewhere).revoke(key.id)
        assert await to(lookup) == ONE, "from memory, so this test would notice if the database was never read again"
        await eventually(lambda: moved(lookup))
        await eventually(lambda: refused(lookup))

    run(test, database)


def test_invalidate_makes_another_processs_change_visible_at_once(
    database: Database, elsewhere: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_cache, "POLL_SECONDS", 3600.0)
    aliases = Aliases(elsewhere)
    aliases.set("prod", Routing.to(ONE), BY)

    async def test(lookup: LookupCache) -> None:
        assert await to(lookup) == ONE
        aliases.set("prod", Routing.to(TWO), BY)
        lookup.invalidate()
        assert await to(lookup) == TWO

    run(test, database)


def test_uncounted_change_becomes_visible_after_the_maximum_age(
    database: Database, elsewhere: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_cache, "MAX_AGE_SECONDS", 0.5)
    key, secret = Keys(elsewhere).create("bot")

    async def test(lookup: LookupCache) -> None:
        assert (await lookup.authenticate(secret)).id == key.id
        with elsewhere.write() as session:
            session.execute(text("UPDATE api_keys SET revoked_at = 1"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Unauthenticated):
                while True:
                    await lookup.authenticate(secret)
                    await asyncio.sleep(0.01)

    run(test, database)


def test_concurrent_lookups_after_a_write_read_the_counter_once(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_cache, "POLL_SECONDS", 3600.0)
    Aliases(database).set("prod", Routing.to(ONE), BY)
    reads = []
    count = Changes.count

    def counted(self: Changes) -> int:
        reads.append(1)
        return count(self)

    async def test(lookup: LookupCache) -> None:
        await to(lookup)
        monkeypatch.setattr(Changes, "count", counted)
        lookup.invalidate()
        assert await asyncio.gather(*(to(lookup) for _ in range(50))) == [ONE] * 50
        assert len(reads) == 1

    run(test, database)


def test_writes_of_other_tables_keep_the_cache(database: Database, adapters: None) -> None:
    Aliases(database).set("prod", Routing.to(ONE), BY)
    leases, jobs = Leases(database, 60.0), Jobs(database)

    async def test(lookup: LookupCache) -> None:
        await to(lookup)
        await eventually(lambda: has_counter(lookup))
        await to(lookup)
        cached = lookup._cached
        claimed(jobs, leases)
        assert await to(lookup) == ONE
        assert lookup._cached is cached
        assert cached.destinations

    run(test, database)


# -- a database that does not answer -------------------------------------------------------------------------------------------


class Outage:
    """Makes every new transaction fail as without a server."""

    def __init__(self, database: Database) -> None:
        self.is_on = False
        self._engine = database.engine
        event.listen(database.engine, "begin", self._fail)

    def _fail(self, _connection: object) -> None:
        from sqlalchemy.exc import OperationalError

        if self.is_on:
            raise OperationalError("BEGIN", {}, Exception("connection refused"))


async def is_down(lookup: LookupCache) -> bool:
    return lookup._is_down


async def is_up(lookup: LookupCache) -> bool:
    return not lookup._is_down


def test_cached_keys_and_names_bridge_a_short_outage(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases, keys = Aliases(database), Keys(database)
    aliases.set("prod", Routing.to(ONE), BY)
    key, secret = keys.create("bot")
    outage = Outage(database)

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        await to(lookup)
        await lookup.authenticate(secret)
        outage.is_on = True
        await eventually(lambda: is_down(lookup))
        with pytest.raises(Unavailable):
            aliases.set("prod", Routing.to(TWO), BY)
        assert await to(lookup) == ONE, "a write that failed changed nothing"
        assert await lookup.authenticate(secret) == key
        with pytest.raises(Unavailable) as caught:
            await to(lookup, TWO)
        assert caught.value.code == Code.DATABASE_UNAVAILABLE
        monkeypatch.setattr(lookup_cache, "OUTAGE_SECONDS", 0.0)
        with pytest.raises(Unavailable):
            await to(lookup)
        with pytest.raises(Unavailable):
            await lookup.authenticate(secret)
        monkeypatch.undo()
        outage.is_on = False
        await eventually(lambda: is_up(lookup))
        assert await to(lookup) == ONE

    run(test, database)


def test_own_change_empties_the_cache_during_an_outage(database: Database, adapters: None) -> None:
    """The change was written, and then the database went away before the counter could be read."""
    keys = Keys(database)
    key, secret = keys.create("bot")
    outage = Outage(database)
    database.after_write.append(lambda: setattr(outage, "is_on", True))

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        assert await lookup.authenticate(secret) == key
        keys.revoke(key.id)
        with pytest.raises(Unavailable):
            await lookup.authenticate(secret)

    run(test, database)


# -- secrets that end by themselves, last use --------------------------------------------------------------------------


def test_expiry_is_honoured_from_memory(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(database)
    ends = datetime.now(UTC) + timedelta(hours=1)
    _, expiring = keys.create("bot", expires_at=ends)
    key, old = keys.create("rotated")
    _, new = keys.rotate(key.id, 3600)
    queries = Queries(database)

    async def test(lookup: LookupCache) -> None:
        await eventually(lambda: has_counter(lookup))
        for secret in (expiring, old, new):
            assert await lookup.authenticate(secret) == lookup.known_key(secret)
        read = len(queries.statements)
        later = ends.timestamp() + 60
        monkeypatch.setattr(lookup_cache, "now_seconds", lambda: later)
        for secret in (expiring, old):
            assert lookup.known_key(secret) is None
            with pytest.raises(Unauthenticated) as refused:
                await lookup.authenticate(secret)
            assert refused.value.code == Code.KEY_EXPIRED
            assert lookup.has_accepted(secret), "a known secret is not a guess"
        assert lookup.known_key(new), "the new secret of a rotated key does not end"
        assert len(queries.statements) == read

    run(test, database)


def test_last_use_is_written_by_the_poll_and_at_the_end(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(database)
    (first, first_secret), (second, second_secret) = keys.create("one"), keys.create("two")
    moments = iter([1000.0, 2000.0])
    monkeypatch.setattr(lookup_cache, "now_seconds", lambda: next(moments))

    async def is_written(_: LookupCache) -> bool:
        return keys.get(first.id, SHARED).last_used_at == datetime.fromtimestamp(1000, UTC)

    async def test(lookup: LookupCache) -> None:
        await lookup.authenticate(first_secret)
        assert not await is_written(lookup), "not in the request"
        monkeypatch.setattr(lookup_cache, "USE_SECONDS", 0.0)
        await eventually(lambda: is_written(lookup))
        monkeypatch.setattr(lookup_cache, "USE_SECONDS", 3600.0)
        await lookup.authenticate(second_secret)
        assert keys.get(second.id, SHARED).last_used_at is None

    run(test, database)
    assert keys.get(second.id, SHARED).last_used_at == datetime.fromtimestamp(2000, UTC)


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_changed_catalogue_file_is_read_again(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    lookup = LookupCache(database, path)
    assert lookup.catalog().bases == []
    save_catalog(path, Catalog(bases=[base_entry("one")]))
    first = lookup.catalog()
    assert [base.name for base in first.bases] == ["one"]
    assert lookup.catalog() is first
    save_catalog(path, Catalog(bases=[base_entry("two")]))
    assert [base.name for base in lookup.catalog().bases] == ["two"]
    path.write_text("{")
    with pytest.raises(InvalidRequest):
        lookup.catalog()
    path.unlink()
    assert lookup.catalog().bases == []


def test_names_of_bases_follow_the_catalogue_after_the_poll_interval(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.json"
    lookup = LookupCache(database, path)
    save_catalog(path, Catalog(bases=[base_entry("one")]))
    assert lookup.is_base("one")
    save_catalog(path, Catalog(bases=[base_entry("two")]))
    monkeypatch.setattr(lookup_cache, "POLL_SECONDS", 0.0)
    assert (lookup.is_base("one"), lookup.is_base("two")) == (False, True)
