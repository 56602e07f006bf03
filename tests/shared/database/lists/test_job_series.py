"""Series of jobs on both databases: chunks that grow, attempts that replace steps, ranges."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from sqlalchemy import event

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.lists.job_series import read_extent, read_series
from shared.errors import Code, LeaseLost
from shared.job_series import ABSENT, CHUNK_STEPS, SeriesChunk
from tests.support.builders import LEASE_SECONDS, claimed
from tests.support.clock import Clock


@pytest.fixture
def leases(database: Database, clock: Clock) -> Leases:
    return Leases(database, LEASE_SECONDS)


@pytest.fixture
def lease(database: Database, leases: Leases) -> Lease:
    return claimed(Jobs(database), leases)


def chunks(name: str, first: int, values: list[float]) -> list[SeriesChunk]:
    """Chunks with values from a step on."""
    made: dict[int, list[float]] = {}
    for step, value in enumerate(values, start=first):
        number, position = divmod(step - 1, CHUNK_STEPS)
        made.setdefault(number, [ABSENT] * CHUNK_STEPS)[position] = value
    return [SeriesChunk.of(name, number, each) for number, each in made.items()]


def again(leases: Leases, lease: Lease, clock: Clock) -> Lease:
    """The next attempt at a job whose worker has died."""
    clock.advance(LEASE_SECONDS + 1)
    leases.sweep()
    clock.advance(3600)
    following = leases.claim(lease.job.id, "worker")
    assert following
    return following


def read(
    database: Database, job_id: str, name: str = "train_loss", first: int = 1, last: int = 0
) -> list[float | None]:
    extent = read_extent(database, job_id)
    values = read_series(database, job_id, extent, [name], first, last or extent.last_step)[name]
    return [None if math.isnan(value) else value for value in values]


def test_nothing_is_stored_of_a_new_job(database: Database, lease: Lease) -> None:
    assert read_extent(database, lease.job.id) == ({}, 0, [])


def test_chunk_grows_and_is_followed_by_the_next(database: Database, leases: Leases, lease: Lease) -> None:
    values = [float(step) for step in range(1, 2 * CHUNK_STEPS + 11)]
    for size in (1, 100, CHUNK_STEPS, CHUNK_STEPS + 1, len(values)):
        leases.report(lease, events=[], series=chunks("train_loss", 1, values[:size]))
        assert read(database, lease.job.id) == values[:size]
        assert read_extent(database, lease.job.id).last_step == size
    assert read(database, lease.job.id, first=250, last=260) == values[249:260]
    assert read(database, lease.job.id, first=CHUNK_STEPS + 1) == values[CHUNK_STEPS:]


def test_sparse_series_have_their_steps_only(database: Database, leases: Leases, lease: Lease) -> None:
    valid = chunks("valid_loss", 4, [0.5]) + chunks("valid_loss", 600, [0.25])
    leases.report(lease, events=[], series=chunks("train_loss", 1, [1.0] * 600) + valid)
    extent = read_extent(database, lease.job.id)
    assert extent == ({1: 1}, 600, ["train_loss", "valid_loss"])
    found = read(database, lease.job.id, "valid_loss")
    assert {step: value for step, value in enumerate(found, start=1) if value is not None} == {4: 0.5, 600: 0.25}


def test_later_attempt_replaces_the_steps_from_its_first_on(
    database: Database, leases: Leases, lease: Lease, clock: Clock
) -> None:
    job_id = lease.job.id
    first = chunks("train_loss", 1, [1.0] * 600) + chunks("valid_loss", 500, [9.0])
    leases.report(lease, events=[], series=first)
    second = again(leases, lease, clock)
    leases.report(second, events=[], series=chunks("train_loss", 301, [2.0] * 20))
    extent = read_extent(database, job_id)
    assert (extent.attempts, extent.last_step) == ({1: 1, 2: 301}, 320)
    assert read(database, job_id) == [1.0] * 300 + [2.0] * 20
    assert read(database, job_id, first=257, last=310) == [1.0] * 44 + [2.0] * 10
    # Also of a series that the later attempt has not sent yet.
    assert read(database, job_id, "valid_loss", last=320) == [None] * 320


def test_attempt_that_lost_its_job_writes_nothing(
    database: Database, leases: Leases, lease: Lease, clock: Clock
) -> None:
    again(leases, lease, clock)
    with pytest.raises(LeaseLost) as caught:
        leases.report(lease, events=[], series=chunks("train_loss", 1, [1.0]))
    assert caught.value.code == Code.LEASE_LOST
    assert read_extent(database, lease.job.id).names == []


def test_series_change_the_version_of_their_job(database: Database, leases: Leases, lease: Lease) -> None:
    before = Jobs(database).get(lease.job.id).version
    leases.report(lease, events=[], series=chunks("train_loss", 1, [1.0]))
    assert Jobs(database).get(lease.job.id).version > before


def test_backlog_of_an_outage_is_one_statement(database: Database, leases: Leases, lease: Lease) -> None:
    """Its transaction holds the lock of writers."""
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        statements.append(statement)

    backlog = [chunk for name in ("train_loss", "grad_norm") for chunk in chunks(name, 1, [1.0] * 20 * CHUNK_STEPS)]
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        leases.report(lease, events=[], series=backlog)
        leases.report(lease, events=[], series=backlog[-1:])
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    assert sum("job_series" in statement for statement in statements) == 2
    assert read(database, lease.job.id, "grad_norm") == [1.0] * 20 * CHUNK_STEPS


def test_series_that_the_job_lacks_take_no_memory(database: Database, leases: Leases, lease: Lease) -> None:
    leases.report(lease, events=[], series=chunks("train_loss", 1, [1.0] * 10))
    extent = read_extent(database, lease.job.id)
    values = read_series(database, lease.job.id, extent, ["absent", "train_loss"], 1, 10)
    assert {name: (type(each), len(each)) for name, each in values.items()} == {
        "absent": (array, 0),
        "train_loss": (array, 10),
    }
