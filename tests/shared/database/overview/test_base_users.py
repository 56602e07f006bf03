"""The name of a base compared with the names of all tenants, on both databases."""

from __future__ import annotations

import pytest

from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.overview.base_users import refuse_needed_base, refuse_taken_name
from shared.database.routing import Routing, StandsFor
from shared.errors import Code, MensError
from tests.support.builders import claimed, new_adapter, submission

ALICE = Actor(id="key-1", name="alice")


def refusal(call, database: Database, name: str) -> MensError:
    with pytest.raises(MensError) as caught:
        call(database, name)
    return caught.value


def test_alias_of_any_tenant_keeps_its_name(database: Database, jobs: Jobs, leases: Leases) -> None:
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter()])
    aliases = Aliases(database, "acme")
    refuse_taken_name(database, "helper")
    aliases.set("helper", Routing.to("demo@1"), ALICE)
    refused = refusal(refuse_taken_name, database, "helper")
    assert (refused.code, refused.details) == (Code.NAME_INVALID, {"tenants": ["acme"]})
    assert "`MENS_TENANT=acme mens aliases delete helper`" in refused.remedy
    aliases.delete("helper", ALICE)
    refuse_taken_name(database, "helper")


def test_foreign_name_keeps_its_name_and_its_base(database: Database, jobs: Jobs) -> None:
    names = ForeignNames(database)
    names.set("gpt-4o", StandsFor(kind="base", name="tiny"), ALICE, bases=["tiny"])
    assert "mens names remove gpt-4o`" in refusal(refuse_taken_name, database, "gpt-4o").remedy
    refused = refusal(refuse_needed_base, database, "tiny")
    assert (refused.code, refused.details["names"]) == (Code.MODEL_IN_USE, ["gpt-4o"])
    refuse_needed_base(database, "other")


def test_unfinished_job_keeps_the_name_of_its_alias(database: Database, jobs: Jobs) -> None:
    job, _ = jobs.submit(submission(contract={"artifact": {"alias": "helper"}}))
    refused = refusal(refuse_taken_name, database, "helper")
    assert (refused.code, refused.details) == (Code.NAME_INVALID, {"jobs": [job.id]})
    jobs.cancel(job.id)
    refuse_taken_name(database, "helper")


def test_base_with_adapters_or_jobs_is_needed(database: Database, jobs: Jobs, leases: Leases) -> None:
    refuse_needed_base(database, "tiny")
    lease = claimed(jobs.of("acme"), leases)
    refused = refusal(refuse_needed_base, database, "tiny")
    assert (refused.code, refused.details["jobs"]) == (Code.MODEL_IN_USE, [lease.job.id])
    leases.finish(lease, {}, adapters=[new_adapter()])
    assert refusal(refuse_needed_base, database, "tiny").details["adapters"] == ["demo@1"]
