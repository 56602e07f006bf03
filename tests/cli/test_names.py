"""Ids as people type them, against a real API on a real socket."""

from __future__ import annotations

import pytest

from shared.tenancy import Role
from tests.cli.conftest import Installation
from tests.shared.samples import new_adapter, submission

OLD, NEW, OTHER = (f"demo@{digits:0<64}" for digits in ("1f3c9a2b", "1f3c9a2e", "9c"))

pytestmark = pytest.mark.network


@pytest.fixture
def shop(installation: Installation) -> Installation:
    """Three adapters of one name; the digests of two begin alike."""
    installation.register(*(new_adapter(adapter, final=adapter == OLD) for adapter in (OLD, NEW, OTHER)))
    return installation


def test_a_beginning_stands_for_the_adapter(shop: Installation) -> None:
    assert shop.mens("aliases", "set", "prod", "demo@9c") == f"prod → {OTHER}, version 1"
    split = shop.mens("aliases", "split", "prod", "demo@9…=90", "demo@1f3c9a2e=10", "--shadow", "demo@1f3c9a2b")
    assert split == f"prod → {OTHER} 90 %, {NEW} 10 % (shadow: {OLD} 10 %), version 2"
    assert shop.mens("models", "show", "demo@9").startswith(f"{OTHER}  checkpoint, published")


def test_a_beginning_of_several_lists_them(shop: Installation) -> None:
    several = "error: several ids begin with demo@1f3; type more of the one that is meant:\n"
    told = shop.mens("aliases", "set", "prod", "demo@1f3", code=1)
    assert told.startswith(several)
    assert sorted(told.removeprefix(several).split()) == [OLD, NEW]
    assert shop.mens("aliases", "list") == ""


def test_a_beginning_is_asked(shop: Installation) -> None:
    unserved = shop.mens("chat", OTHER, "hi", code=1)
    assert "MODEL_NOT_FOUND" not in unserved
    assert shop.mens("chat", "demo@9", "hi", code=1) == unserved
    assert shop.mens("chat", "demo@e", "hi", code=1).startswith("error: MODEL_NOT_FOUND")


def test_what_no_adapter_begins_with_is_the_apis_to_refuse(shop: Installation) -> None:
    assert shop.mens("aliases", "set", "prod", "demo@e", code=1).startswith("error: ADAPTER_NOT_FOUND")
    assert shop.mens("models", "show", "demo@e", code=1).startswith("error: MODEL_NOT_FOUND")
    assert "demo" in shop.mens("aliases", "set", "prod", "demo", code=1), "a name alone may be an alias's"


def test_a_whole_id_may_begin_another(shop: Installation) -> None:
    shop.register(new_adapter("short@1"), new_adapter("short@12", final=False))
    assert shop.mens("aliases", "set", "prod", "short@1") == "prod → short@1, version 1"


def test_a_deletion_wants_eight_digits_and_names_what_it_deletes(shop: Installation) -> None:
    refused = shop.mens("models", "delete", "demo@9c00000", "--yes", code=1)
    assert refused == f"error: demo@9c00000 means {OTHER}; give the whole id here, or 8 digits of it at least"
    assert "several" in shop.mens("models", "delete", "demo@1f3c9a2", "--yes", code=1)
    assert shop.mens("models", "delete", "demo@9c000000", code=1).startswith(f"Delete {OTHER}?"), "nobody said yes"
    assert shop.mens("models", "delete", "demo@9c000000", "--yes").startswith(f"{OTHER} is deleted")
    assert OTHER not in shop.mens("models")


def test_a_beginning_stands_for_the_job(installation: Installation) -> None:
    ledger = installation.services.ledger
    first, second = (ledger.submit(submission())[0].id for _ in range(2))
    common = next(first[:end] for end in range(len(first), 0, -1) if second.startswith(first[:end]))
    told = installation.mens("jobs", "cancel", common, code=1)
    assert sorted(told.splitlines()[1:]) == [f"  {first}", f"  {second}"]
    own = first[: len(common) + 1]
    assert installation.mens("jobs", "cancel", own) == f"{first} is cancelled"
    assert installation.mens("jobs", "pause", f"{second[:-1]}…") == f"{second} is paused"
    assert installation.mens("jobs", "show", "ftjob-zzz", code=1).startswith("error: JOB_NOT_FOUND")


def test_of_many_jobs_only_some_are_listed(installation: Installation) -> None:
    jobs = [installation.services.ledger.submit(submission())[0].id for _ in range(12)]
    *listed, last = installation.mens("jobs", "show", "ftjob-0", code=1).splitlines()[1:]
    assert [line.strip() for line in listed] == sorted(jobs, reverse=True)[:10]
    assert last == "  …"


def test_beginnings_are_of_what_the_tenant_sees(shop: Installation) -> None:
    shop.become("tess", "acme", Role.TRAINER)
    mine = shop.services.ledger.of("acme").submit(submission())[0].id
    shop.become("tom", "other", Role.TRAINER)
    assert "JOB_NOT_FOUND" in shop.mens("jobs", "show", mine[:-1], code=1)
