"""``mens tenants`` and ``mens jobs priority`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from shared.database.tenancy import SHARED, Role
from tests.support.builders import submission
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network


def test_a_quota_is_set_shown_and_lifted(installation: CliInstallation) -> None:
    installation.become("op", SHARED, Role.ADMIN)
    installation.services.keys.create("tess", "acme", Role.TRAINER)
    shown = installation.mens("tenants", "limit", "acme", "--running", "2", "--gpu-minutes", "600").splitlines()
    assert shown[:3] == ["tenant       acme", "running      0 of 2", "queued       0"]
    assert shown[3].startswith("GPU minutes  0 of 600; the next month starts 20")
    acme, shared = (line.split("\t") for line in installation.mens("tenants", "list").splitlines())
    assert acme == ["acme", "0 of 2", "0", "0 of 600", "0", "1", "0", "0 bytes", ""]
    assert shared[0] == "shared"
    lifted = json.loads(installation.mens("tenants", "limit", "acme", "--running", "none", "--json"))
    assert (lifted["running_jobs"], lifted["gpu_minutes_per_month"]) == (None, 600)
    seen = installation.mens("tenants", "show", "--tenant", "acme")
    assert "0 of 600" in seen
    assert seen.splitlines()[-1].split("\t")[1:] == ["tess", "trainer", "valid"]
    installation.become("ada", "acme", Role.ADMIN)
    assert installation.mens("tenants", "show").splitlines()[-1].startswith("GPU minutes")


@pytest.mark.parametrize("arguments", [[], ["--running", "x"], ["--queued", "-1"]])
def test_what_is_not_a_quota_is_refused(installation: CliInstallation, arguments: list[str]) -> None:
    installation.mens("tenants", "limit", "acme", *arguments, code=2)


def test_priority_of_a_job(installation: CliInstallation) -> None:
    job, _ = installation.services.jobs.submit(submission())
    assert installation.mens("jobs", "priority", job.id, "--", "-2") == f"{job.id} is queued with priority -2"
    assert installation.services.jobs.get(job.id).priority == -2
