"""The directory on both databases: nothing changed is answered from memory, and an outage is lived through for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text

from api import directory as directory_module
from api.directory import Directory
from shared.aliases import Aliases, Mover
from shared.catalog import Catalog, save_catalog
from shared.changes import Changes
from shared.db import Database
from shared.errors import Code, InvalidRequest, Unauthenticated, Unavailable
from shared.keys import Keys
from shared.lease import LeaseLedger
from shared.ledger import Ledger
from shared.routing import Routing
from shared.tenancy import SHARED
from tests.shared.samples import base_entry, claimed, new_adapter

BY = Mover(id="key-1", name="alice")
ONE, TWO, HIDDEN = "demo@1", "demo@2", "demo@3"
PATIENCE_SECONDS = 10.0


@pytest.fixture
def adapters(database: Database) -> None:
    made = [new_adapter(name, final=name == ONE, published=name != HIDDEN) for name in (ONE, TWO, HIDDEN)]
    leases = LeaseLedger(database, 60.0)
    leases.finish(claimed(Ledger(database), leases), {}, adapters=made)


@pytest.fixture
def elsewhere(database_url: str) -> Iterator[Database]:
    """The same database, in what might be another process."""
    database = Database(database_url)
    yield database
    database.close()


def run(test: Callable[[Directory], Awaitable[None]], database: Database) -> None:
    async def begun_and_ended() -> None:
        directory = Directory(database, Path("none"))
        try:
            directory.start()
            await test(directory)
        finally:
            await directory.close()

    asyncio.run(begun_and_ended())


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


class Queries:
    """What is asked of a database, but for the count of changes."""

    def __init__(self, database: Database) -> None:
        self.asked: list[str] = []
        event.listen(database.engine, "before_cursor_execute", self._hear)

    def _hear(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT") and "changes" not in statement:
            self.asked.append(statement)


async def to(directory: Directory, name: str = "prod", tenant: str = SHARED) -> str | None:
    routing = await directory.find(tenant, name)
    return routing.main if routing else None


def test_what_is_known_is_not_asked_again(database: Database, adapters: None) -> None:
    key, secret = Keys(database).create("bot", "acme")
    Aliases(database).set("prod", Routing.to(ONE), BY)
    queries, asked = Queries(database), list[int]()

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        for _ in range(3):
            assert await directory.authenticate(secret) == key
            assert [await to(directory), await to(directory, TWO)] == [ONE, TWO]
            asked.append(len(queries.asked))
        assert asked == [asked[0]] * 3
        assert asked[0] >= 3, "somebody has to ask"

    run(test, database)


async def told(directory: Directory) -> bool:
    """Whether the database has answered a look."""
    return directory._count is not None


def test_what_is_unknown_is_asked_each_time(database: Database, elsewhere: Database, adapters: None) -> None:
    keys = Keys(elsewhere)

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        with pytest.raises(Unauthenticated):
            await directory.authenticate("mens-no")
        assert await to(directory) is None
        assert await to(directory, HIDDEN) is None, "never published"
        Aliases(elsewhere).set("prod", Routing.to(ONE), BY)
        _, secret = keys.create("new")
        assert await to(directory) == ONE, "at once, though another process made it"
        assert await directory.authenticate(secret)

    run(test, database)


def test_a_tenants_own_name_comes_before_the_shared_one(database: Database, adapters: None) -> None:
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(ONE), BY)

    async def test(directory: Directory) -> None:
        assert [await to(directory), await to(directory, tenant="acme")] == [ONE, ONE]
        aliases.of("acme").set("prod", Routing.to(TWO), BY)
        assert [await to(directory), await to(directory, tenant="acme")] == [ONE, TWO]
        assert await to(directory, tenant="other") == ONE

    run(test, database)


def test_own_changes_are_seen_at_once(database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "POLL_SECONDS", 3600.0)
    aliases, keys = Aliases(database), Keys(database)

    async def test(directory: Directory) -> None:
        key, secret = keys.create("bot")
        for round_ in range(25):
            wanted = (ONE, TWO)[round_ % 2]
            await asyncio.to_thread(aliases.set, "prod", Routing.to(wanted), BY)
            assert await asyncio.gather(*(to(directory) for _ in range(4))) == [wanted] * 4
        aliases.rollback("prod", BY)
        assert await to(directory) == TWO
        aliases.delete("prod", BY)
        assert await to(directory) is None
        assert await directory.authenticate(secret) == key
        keys.revoke(key.id)
        with pytest.raises(Unauthenticated):
            await directory.authenticate(secret)

    run(test, database)


def test_a_reader_that_was_late_leaves_nothing_behind(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the old routing before the move, and comes back with it after the move."""
    aliases = Aliases(database)
    aliases.set("prod", Routing.to(ONE), BY)
    has_read, may_return = threading.Event(), threading.Event()

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        read = directory._read

        def slowly(tenant: str, name: str) -> Routing | None:
            routing = read(tenant, name)
            has_read.set()
            assert may_return.wait(PATIENCE_SECONDS)
            return routing

        monkeypatch.setattr(directory, "_read", slowly)
        late = asyncio.create_task(to(directory))
        await asyncio.to_thread(has_read.wait, PATIENCE_SECONDS)
        await asyncio.to_thread(aliases.set, "prod", Routing.to(TWO), BY)
        await directory._look()  # the move is noticed before the reader returns
        may_return.set()
        assert await late == ONE, "it began before the move"
        assert await to(directory) == TWO

    run(test, database)


def test_changes_of_other_processes_are_noticed(database: Database, elsewhere: Database, adapters: None) -> None:
    key, secret = Keys(elsewhere).create("bot")
    Aliases(elsewhere).set("prod", Routing.to(ONE), BY)

    async def refused(directory: Directory) -> bool:
        try:
            return not await directory.authenticate(secret)
        except Unauthenticated:
            return True

    async def moved(directory: Directory) -> bool:
        return await to(directory) == TWO

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        assert await to(directory) == ONE
        assert await directory.authenticate(secret) == key
        Aliases(elsewhere).set("prod", Routing.to(TWO), BY)
        Keys(elsewhere).revoke(key.id)
        assert await to(directory) == ONE, "from memory, so this test would notice if nothing was looked at again"
        await eventually(lambda: moved(directory))
        await eventually(lambda: refused(directory))

    run(test, database)


def test_a_change_that_somebody_was_told_of_is_seen_at_once(
    database: Database, elsewhere: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "POLL_SECONDS", 3600.0)
    aliases = Aliases(elsewhere)
    aliases.set("prod", Routing.to(ONE), BY)

    async def test(directory: Directory) -> None:
        assert await to(directory) == ONE
        aliases.set("prod", Routing.to(TWO), BY)
        directory.expect_change()
        assert await to(directory) == TWO

    run(test, database)


def test_a_change_that_nobody_counts_is_seen_after_a_while(
    database: Database, elsewhere: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "FORGET_SECONDS", 0.5)
    key, secret = Keys(elsewhere).create("bot")

    async def test(directory: Directory) -> None:
        assert (await directory.authenticate(secret)).id == key.id
        with elsewhere.write() as session:
            session.execute(text("UPDATE api_keys SET revoked_at = 1"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Unauthenticated):
                while True:
                    await directory.authenticate(secret)
                    await asyncio.sleep(0.01)

    run(test, database)


def test_of_many_that_wait_for_a_write_one_looks(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "POLL_SECONDS", 3600.0)
    Aliases(database).set("prod", Routing.to(ONE), BY)
    looks = []
    count = Changes.count

    def counted(self: Changes) -> int:
        looks.append(1)
        return count(self)

    async def test(directory: Directory) -> None:
        await to(directory)
        monkeypatch.setattr(Changes, "count", counted)
        directory.expect_change()
        assert await asyncio.gather(*(to(directory) for _ in range(50))) == [ONE] * 50
        assert len(looks) == 1

    run(test, database)


def test_writes_that_change_nothing_here_forget_nothing(database: Database, adapters: None) -> None:
    Aliases(database).set("prod", Routing.to(ONE), BY)
    leases, ledger = LeaseLedger(database, 60.0), Ledger(database)

    async def test(directory: Directory) -> None:
        await to(directory)
        await eventually(lambda: told(directory))
        await to(directory)
        known = directory._known
        claimed(ledger, leases)
        assert await to(directory) == ONE
        assert directory._known is known
        assert known.routings

    run(test, database)


# -- a database that is away -------------------------------------------------------------------------------------------


class Outage:
    """Makes every new transaction fail as it does when the server is not there."""

    def __init__(self, database: Database) -> None:
        self.is_on = False
        self._engine = database.engine
        event.listen(database.engine, "begin", self._fail)

    def _fail(self, _connection: object) -> None:
        from sqlalchemy.exc import OperationalError

        if self.is_on:
            raise OperationalError("BEGIN", {}, Exception("connection refused"))


async def is_silent(directory: Directory) -> bool:
    return directory._is_silent


async def is_heard(directory: Directory) -> bool:
    return not directory._is_silent


def test_what_is_known_outlives_a_short_outage(
    database: Database, adapters: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    aliases, keys = Aliases(database), Keys(database)
    aliases.set("prod", Routing.to(ONE), BY)
    key, secret = keys.create("bot")
    outage = Outage(database)

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        await to(directory)
        await directory.authenticate(secret)
        outage.is_on = True
        await eventually(lambda: is_silent(directory))
        with pytest.raises(Unavailable):
            aliases.set("prod", Routing.to(TWO), BY)
        assert await to(directory) == ONE, "a write that failed changed nothing"
        assert await directory.authenticate(secret) == key
        with pytest.raises(Unavailable) as caught:
            await to(directory, TWO)
        assert caught.value.code == Code.DATABASE_UNAVAILABLE
        monkeypatch.setattr(directory_module, "SILENCE_SECONDS", 0.0)
        with pytest.raises(Unavailable):
            await to(directory)
        with pytest.raises(Unavailable):
            await directory.authenticate(secret)
        monkeypatch.undo()
        outage.is_on = False
        await eventually(lambda: is_heard(directory))
        assert await to(directory) == ONE

    run(test, database)


def test_an_own_change_is_not_forgotten_in_an_outage(database: Database, adapters: None) -> None:
    """The change was made, and then the database went away before it could be looked at."""
    keys = Keys(database)
    key, secret = keys.create("bot")
    outage = Outage(database)
    database.after_write.append(lambda: setattr(outage, "is_on", True))

    async def test(directory: Directory) -> None:
        await eventually(lambda: told(directory))
        assert await directory.authenticate(secret) == key
        keys.revoke(key.id)
        with pytest.raises(Unavailable):
            await directory.authenticate(secret)

    run(test, database)


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_the_catalogue_is_read_again_when_it_is_another(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    directory = Directory(database, path)
    assert directory.catalog().bases == []
    save_catalog(path, Catalog(bases=[base_entry("one")]))
    first = directory.catalog()
    assert [base.name for base in first.bases] == ["one"]
    assert directory.catalog() is first
    save_catalog(path, Catalog(bases=[base_entry("two")]))
    assert [base.name for base in directory.catalog().bases] == ["two"]
    path.write_text("{")
    with pytest.raises(InvalidRequest):
        directory.catalog()
    path.unlink()
    assert directory.catalog().bases == []


def test_names_of_bases_are_of_a_moment_ago_at_most(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.json"
    directory = Directory(database, path)
    save_catalog(path, Catalog(bases=[base_entry("one")]))
    assert directory.is_base("one")
    save_catalog(path, Catalog(bases=[base_entry("two")]))
    monkeypatch.setattr(directory_module, "POLL_SECONDS", 0.0)
    assert (directory.is_base("one"), directory.is_base("two")) == (False, True)
