"""Adapters on both databases: found by id and alias, listed, and registered by jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.database.adapters import Adapter, Adapters, NewAdapter, PublishedAdapter
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.tenancy import SHARED
from shared.errors import Code, NotFound
from tests.support.builders import claimed, new_adapter


def test_adapter_is_found_by_id_and_alias(adapters: Adapters, jobs: Jobs, leases: Leases) -> None:
    made = new_adapter(metrics={"loss": 0.5}, certificates={"replica": {"ok": True}})
    leases.finish(claimed(jobs, leases), {}, adapters=[made], alias="prod")
    found = adapters.get("demo@1")
    assert adapters.get("prod") == found
    assert (
        found.model_dump(include=set(NewAdapter.model_fields))
        == new_adapter(metrics={"loss": 0.5}, certificates={"replica": {"ok": True}}).model_dump()
    )


@pytest.mark.parametrize("name", ["demo@none", "demo@\0"])
def test_unknown_adapter_is_not_found(adapters: Adapters, name: str) -> None:
    with pytest.raises(NotFound) as caught:
        adapters.get(name)
    assert caught.value.code is Code.ADAPTER_NOT_FOUND


def test_adapters_are_listed_newest_first(adapters: Adapters, jobs: Jobs, leases: Leases) -> None:
    made = [new_adapter(f"demo@{step}", step=step, published=step > 1, final=step == 3) for step in (1, 3, 2)]
    leases.finish(claimed(jobs, leases), {}, adapters=made)

    assert ids(adapters.page()) == ["demo@3", "demo@2", "demo@1"]
    assert ids(adapters.published()) == ["demo@3", "demo@2"]
    assert ids(adapters.published(["demo@1", "demo@2"])) == ["demo@2"]
    assert ids(adapters.with_ids(["demo@1", "demo@9", "demo@3"])) == ["demo@3", "demo@1"]
    assert ids(adapters.with_ids(["demo@1"], published_only=True)) == []
    assert ids(adapters.with_ids([])) == []


def test_pages_have_each_adapter_once_also_after_a_deleted_one(
    database: Database, adapters: Adapters, jobs: Jobs, leases: Leases
) -> None:
    made = [new_adapter(f"demo@{number}", step=number % 3) for number in range(9)]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    whole = ids(adapters.page(limit=100))
    seen: list[str] = []
    while page := ids(adapters.page(after=seen[-1] if seen else None, limit=2))[:2]:
        seen += page
        Deletions(database).begin(page[-1])
    assert seen == whole
    assert sorted(whole) == sorted(adapter.id for adapter in made)
    assert len(adapters.page(limit=100)) < len(whole)
    with pytest.raises(NotFound) as caught:
        adapters.page(after="demo@none")
    assert caught.value.param == "after"


def test_page_of_a_text_has_ids_that_begin_or_end_with_it(adapters: Adapters, jobs: Jobs, leases: Leases) -> None:
    made = [new_adapter(name, step=step) for step, name in enumerate(("demo@1ab", "demo@1bc", "other@1cd", "demo%1d"))]
    leases.finish(claimed(jobs, leases), {}, adapters=made)
    assert ids(adapters.page(text="demo@1")) == ["demo@1bc", "demo@1ab"]
    assert ids(adapters.page(text="1c")) == ["other@1cd"]
    assert ids(adapters.page(text="bc")) == ["demo@1bc"]
    assert ids(adapters.page(text="demo%")) == ["demo%1d"]
    assert ids(adapters.page(text="x")) == []


@pytest.mark.parametrize("own_is_published", [True, False])
@pytest.mark.parametrize("shared_is_published", [True, False])
def test_adapter_of_two_tenants_is_listed_once_as_it_is_found(
    database: Database, *, own_is_published: bool, shared_is_published: bool
) -> None:
    for tenant, is_published in (("acme", own_is_published), (SHARED, shared_is_published)):
        jobs, leases = Jobs(database, tenant), Leases(database, 60.0)
        leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter("demo@1", published=is_published)])
    adapters = Adapters(database, "acme")
    assert adapters.page() == [adapters.get("demo@1")]
    is_published = own_is_published or shared_is_published
    assert [one.tenant for one in adapters.published()] == [adapters.get("demo@1").tenant] * is_published


def ids(adapters: Sequence[Adapter | PublishedAdapter]) -> list[str]:
    return [adapter.id for adapter in adapters]
