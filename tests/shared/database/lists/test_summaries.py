"""Summaries of jobs: the fields that lists show, in a tenth of the bytes."""

from __future__ import annotations

from typing import Any

import pytest

from shared.database.connection import Database
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.lists.job_filter import ALL_JOBS, JobFilter
from shared.database.lists.summaries import list_summaries
from shared.database.tenancy import SHARED
from shared.errors import Code, JobFailed
from tests.support.builders import claimed, submission

TRAINING = {"kind": "training", "step": 42, "total_steps": 90, "loss": 0.61, "eta_seconds": 51.5}


@pytest.mark.parametrize(
    ("contract", "alias"),
    [
        ({"artifact": {"alias": "billing"}}, "billing"),
        ({"alias": "imported"}, "imported"),
        ({"artifact": {"alias": None}}, None),
        ({}, None),
    ],
)
def test_alias_is_the_one_that_the_job_moves(
    database: Database, jobs: Jobs, contract: dict[str, Any], alias: str | None
) -> None:
    jobs.submit(submission(contract=contract))
    (summary,) = list_summaries(database, SHARED, ALL_JOBS, None, 5)
    assert summary.alias == alias


def test_summary_has_progress_error_and_gpu_minutes(database: Database, jobs: Jobs, leases: Leases) -> None:
    lease = claimed(jobs, leases, name="invoice", labels={"team": "ap"})
    leases.report(lease, progress=TRAINING, events=[])
    (summary,) = list_summaries(database, SHARED, JobFilter(states=[JobState.RUNNING]), None, 5)
    assert (summary.step, summary.total_steps, summary.train_loss, summary.eta_seconds) == (42, 90, 0.61, 51.5)
    assert (summary.name, summary.labels, summary.gpu_minutes, summary.error) == ("invoice", {"team": "ap"}, 0.0, None)
    leases.fail(lease, JobFailed(Code.OUT_OF_MEMORY, "Too large.", remedy="Use less.", details={"long": "x" * 900}))
    (summary,) = list_summaries(database, SHARED, ALL_JOBS, None, 5)
    assert summary.error == {"code": "OUT_OF_MEMORY", "message": "Too large.", "retryable": False}
    assert summary.version == jobs.get(summary.id).version
    assert len(summary.model_dump_json()) < 800


def test_summary_has_the_outcome(database: Database, jobs: Jobs, leases: Leases) -> None:
    results = [
        {},
        {"adapter_id": "a@1", "alias": {"name": "prod", "moved": False}},
        {"model_digest": "1" * 64, "alias": None},
    ]
    for result in results:
        leases.finish(claimed(jobs, leases), result)
    found = list_summaries(database, SHARED, ALL_JOBS, None, 5)[::-1]
    outcomes = [(None, None, None), ("a@1", None, False), (None, "1" * 64, None)]
    assert [(each.adapter_id, each.model_digest, each.alias_moved) for each in found] == outcomes


def test_page_has_one_more_and_only_what_the_tenant_sees(database: Database) -> None:
    for tenant in ("acme", SHARED, "globex", "acme"):
        Jobs(database, tenant).submit(submission())
    found = list_summaries(database, "acme", ALL_JOBS, None, 2)
    assert [one.tenant for one in found] == ["acme", SHARED, "acme"]
    rest = list_summaries(database, "acme", ALL_JOBS, found[1].id, 2)
    assert [one.id for one in rest] == [found[2].id]
    assert list_summaries(database, "globex", JobFilter(base_model="none"), None, 2) == []


def test_summary_of_a_fine_tuning_has_its_steps_and_last_loss(database: Database, jobs: Jobs, leases: Leases) -> None:
    """Its last progress is that of the self-evaluation: eight rows of eight."""
    steps = {"optimizer_steps": 120, "planned_steps": 200}
    for loss in (0.25, None):
        lease = claimed(jobs, leases)
        leases.report(
            lease,
            progress={"kind": "self_evaluation", "activity": "scored_rows", "items_done": 8, "items_total": 8},
            events=[],
        )
        leases.finish(lease, steps | {"last_train_loss": loss})
    found = list_summaries(database, SHARED, ALL_JOBS, None, 5)
    assert [(each.step, each.total_steps, each.train_loss) for each in found] == [(120, 200, None), (120, 200, 0.25)]
