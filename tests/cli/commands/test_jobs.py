"""``mens train`` and ``mens jobs`` against a real API on a real socket; no worker, so the tests do what one would."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.errors import Code, JobFailed
from shared.job import NewEvent
from shared.lease import LeaseLedger
from shared.tenancy import Role
from tests.cli.conftest import Installation
from tests.shared.samples import claimed, new_adapter
from tests.tiny_base import write_base

KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer\nwas killed.", retryable=True)
AGAIN = "TRAINER_KILLED: The trainer was killed. Trying again in 1 s."

pytestmark = pytest.mark.network


@pytest.fixture
def rows(tmp_path: Path, installation: Installation) -> str:
    """A file to tune the base ``tiny`` on, for a tier with a replica."""
    folder, settings = write_base(tmp_path / "bases" / "tiny"), installation.services.settings
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))
    save_catalog(settings.catalog_path, Catalog(bases=[entry]))
    settings.serving_urls[:] = ["http://127.0.0.1:9"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return str(tmp_path / "rows.jsonl")


def test_who_trains_is_told_what_the_alias_will_hide(installation: Installation, rows: str) -> None:
    installation.register(new_adapter("demo@1"))
    installation.mens("aliases", "set", "prod", "demo@1")
    train = ["train", rows, "--model", "tiny", "--no-watch", "--alias"]
    assert "hidden" not in installation.mens(*train, "prod"), "it is its own"
    installation.become("tess", "acme", Role.TRAINER)
    hidden = (
        "note: the alias prod of shared (demo@1) is hidden from acme once the job succeeds; "
        "`mens aliases delete prod` shows it again"
    )
    assert hidden in installation.mens(*train, "prod").splitlines()
    assert "hidden" not in installation.mens(*train, "prod", "--no-publish"), "then no alias moves"
    assert "hidden" not in installation.mens(*train, "new")


def test_an_alias_that_is_no_name(installation: Installation, rows: str) -> None:
    refused = installation.mens("train", rows, "--model", "tiny", "--no-watch", "--alias", "a/b", code=1)
    assert refused.startswith("error: NAME_INVALID: contract.artifact.alias: 'a/b' is no name: lower-case letters")


def test_bad_lines_are_skipped_where_that_is_asked_for(installation: Installation, rows: str) -> None:
    with Path(rows).open("a") as file:
        file.write("oops\n")
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    assert installation.mens(*train, code=1).startswith("error: DATASET_LINE_INVALID")
    assert "30 rows" in installation.mens(*train, "--lenient"), "of 40 that are left, 10 are held out"


def test_who_watches_is_told_why_a_job_is_queued_again(installation: Installation) -> None:
    ledger = installation.services.ledger
    leases = LeaseLedger(installation.services.database, 60)
    job = leases.fail(claimed(ledger, leases), KILLED)
    ledger.cancel(job.id)
    assert installation.mens("jobs", "watch", job.id, code=1).splitlines()[0] == AGAIN


def test_the_last_events_are_shown(installation: Installation, rows: str) -> None:
    installation.mens("train", rows, "--model", "tiny", "--no-watch")
    (job,) = installation.services.ledger.list_jobs(after=None, limit=1)
    leases = LeaseLedger(installation.services.database, 60)
    lease = leases.claim(job.id, "test")
    assert lease
    for number in range(30):
        leases.report(lease, events=[NewEvent(message=f"Event {number}.")])
    told = [line.split("  ")[-1] for line in installation.mens("jobs", "show", lease.job.id).splitlines()]
    assert told[-10:] == [f"Event {number}." for number in range(20, 30)]
    assert "Event 19." not in told
