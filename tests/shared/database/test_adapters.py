"""Adapters on both databases: found by id and alias, listed, and registered by jobs."""

from __future__ import annotations

import pytest

from shared.database.adapters import Adapter, Adapters, NewAdapter
from shared.database.jobs import Jobs
from shared.database.leases import Leases
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

    def ids(adapters: list[Adapter]) -> list[str]:
        return [adapter.id for adapter in adapters]

    assert ids(adapters.list()) == ["demo@3", "demo@2", "demo@1"]
    assert ids(adapters.list(published_only=True)) == ["demo@3", "demo@2"]
    assert ids(adapters.list(ids=["demo@1", "demo@9"])) == ["demo@1"]
    assert ids(adapters.list(ids=["demo@1"], published_only=True)) == []
    assert ids(adapters.list(ids=[])) == []
