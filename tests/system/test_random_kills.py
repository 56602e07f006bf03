"""kill -9 and pauses of random processes under load: no job is lost, repeated or stuck, and equal jobs have equal
results.

`make test` kills each process once (`test_restarts.py`), Valkey and the API during a job (`test_chaos.py`), and trainer
and worker in `tests/worker`. This test makes five kills and pauses, one of which is a pause that outlasts a lease.
``MENS_TEST_KILLS=100 pytest tests/system/test_random_kills.py -s`` makes a hundred and prints the counts;
``MENS_TEST_KILLS_SEED`` selects different ones.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from shared.errors import Code
from tests.support.waiting import eventually
from tests.system.loop import BASE, Installation
from tests.system.random_kills import KINDS, JobLoad, Misfortune

STRIKES = int(os.environ.get("MENS_TEST_KILLS", "5"))
SEED = int(os.environ.get("MENS_TEST_KILLS_SEED", "12"))
SETTLED_SECONDS = 400
"""A job that has used up its retries but one waits a minute for the last; a replica needs most of one to start."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600 + 60 * STRIKES)]


def test_nothing_is_lost_doubled_stuck_or_different(installation: Installation) -> None:
    load = JobLoad(installation, installation.upload())
    misfortune = Misfortune(installation, Random(SEED))
    with load.running():
        for _ in range(STRIKES):
            misfortune.strike()
        eventually(
            lambda: all(load.exact[kind] >= 2 for kind in KINDS), SETTLED_SECONDS, "each kind has jobs to compare"
        )
    eventually(lambda: not load.open_jobs(), SETTLED_SECONDS, "every job has ended")
    jobs = [load.persist("GET", f"/v1/jobs/{job_id}", params={"after": "0"}) for job_id in load.jobs]
    print(json.dumps(summary(load, misfortune, jobs)))
    assert misfortune.killed.total() + misfortune.paused.total() == STRIKES
    assert not load.wrong, "an answer is whole and the adapter's that was asked for, or an error"
    assert load.asked["200"], "callers were answered meanwhile"
    assert not [told for job in jobs if (told := unexplained(job))]
    for kind in KINDS:
        exact = adapters_of(load, jobs, kind)
        assert exact.total() >= 2, f"of each kind ({kind}) some jobs say bit_exact, and can be compared"
        assert len(exact) == 1, f"equal jobs ({kind}) that say bit_exact have equal adapters"
    assert any(job["state"] == "succeeded" for job in jobs)
    eventually(lambda: load.persist("GET", "/ready"), SETTLED_SECONDS, "the API is ready")
    assert installation.ask(BASE)


def unexplained(job: dict[str, Any]) -> str | None:
    """Return a fault of a job's end: it must have succeeded once, or used all attempts that it may have."""
    ended = [event["message"] for event in job["events"] if event["message"].startswith("Job succeeded")]
    if job["state"] == "succeeded":
        return None if len(ended) == 1 else f"{job['id']} has succeeded {len(ended)} times"
    exhausted = job["state"] == "failed" and job["error"]["code"] == Code.ATTEMPTS_EXHAUSTED
    return None if exhausted and not ended else f"{job['id']}: {job['state']}, {job['error']}"


def adapters_of(load: JobLoad, jobs: list[dict[str, Any]], kind: str) -> Counter[str]:
    """Jobs of a kind by the adapter that they made, of those that claim to be exact."""
    done = [job["result"] for job in jobs if job["state"] == "succeeded" and load.jobs[job["id"]] == kind]
    return Counter(result["adapter_id"] for result in done if result["resume"]["guarantee"] == "bit_exact")


def summary(load: JobLoad, misfortune: Misfortune, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "killed": dict(misfortune.killed),
        "paused": dict(misfortune.paused),
        "jobs": dict(Counter(job["state"] for job in jobs)),
        "attempts": sum(job["attempt"] for job in jobs),
        "resumed": sum(len((job["result"] or {"resume": {}})["resume"].get("resumed_from_steps", [])) for job in jobs),
        "adapters": {kind: sorted(adapters_of(load, jobs, kind).values()) for kind in KINDS},
        "chats": {
            "answered": load.asked["200"] - len(load.wrong),
            "answered wrongly": len(load.wrong),
            "failed visibly": load.asked.total() - load.asked["200"],
            "by status": dict(load.asked),
        },
    }
