"""``mens jobs watch`` against a real API on a real socket; the tests take the worker's place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.database.leases import Leases
from shared.errors import Code, JobFailed
from tests.support.builders import claimed, new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.gate_rows import govern

KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer\nwas killed.", retryable=True)
AGAIN = "TRAINER_KILLED: The trainer was killed. Trying again in 1 s."

pytestmark = pytest.mark.network


def test_watch_prints_why_a_job_was_queued_again(installation: CliInstallation) -> None:
    jobs = installation.services.jobs
    leases = Leases(installation.services.database, 60)
    job = leases.fail(claimed(jobs, leases), KILLED)
    jobs.cancel(job.id)
    assert installation.mens("jobs", "watch", job.id, code=1).splitlines()[0] == AGAIN


def test_ctrl_c_ends_the_command_and_says_that_the_job_continues(installation: CliInstallation, rows: str) -> None:
    def interrupt(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    installation.patch.setattr("cli.client.job_progress.describe_wait", interrupt)
    started = installation.invoke("train", rows, "--model", "tiny", "--no-publish", code=130)
    job = installation.services.jobs.list()[0]
    says = f"the job continues; follow it: `mens jobs watch {job.id}`; cancel it: `mens jobs cancel {job.id}`\n"
    assert (started.stderr, job.state) == (says, "queued")
    assert installation.invoke("jobs", "watch", job.id, code=130).stderr == says


def test_a_job_that_succeeded_and_whose_alias_stayed_ends_with_3(installation: CliInstallation, rows: str) -> None:
    installation.register(new_adapter("demo@1"))
    installation.mens("aliases", "set", "prod", "demo@1")
    digest = govern(installation.services.database, "alias:prod").policy.digest
    installation.mens("train", rows, "--model", "tiny", "--no-watch")
    job = installation.services.jobs.list(after=None, limit=1)[0]
    leases = Leases(installation.services.database, 60)
    lease = leases.claim(job.id, "test")
    assert lease
    leases.finish(lease, {}, adapters=[new_adapter("new@1")], alias="prod")
    said = installation.mens("jobs", "watch", job.id, code=3)
    assert said.count("has no receipt") == 1
    assert f"governed by the policy strict ({digest[:12]})" in said
    assert "`mens receipts create new@1 --alias prod`" in said and "/v1/" not in said
    found = json.loads(installation.invoke("jobs", "watch", job.id, "--json", code=3).stdout)
    assert (found["state"], found["result"]["alias"]["moved"]) == ("succeeded", False)
    shown = installation.mens("jobs", "show", job.id)
    assert shown.count("has no receipt") == 1 and "/v1/" not in shown


def test_watch_prints_what_was_measured_of_a_merge(installation: CliInstallation) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    far, near = ({"mean_kl_nats": kl, "max_kl_nats": kl, "max_logit_difference": 0.07} for kl in (0.3, 2.5e-5))
    fidelity = {
        "positions": 152,
        "limit_nats": 1e-2,
        "adapter_divergence": near,
        "training_divergence": None,
        "effect": far,
    }
    leases.finish(lease, {"model_digest": "a" * 64, "fidelity": fidelity})
    lines = installation.mens("jobs", "watch", lease.job.id).splitlines()
    assert lines[-2].endswith(f"`mens up --base {'a' * 12}` serves it as a base")
    assert "152 positions" in lines[-1] and "2.5e-05 from base + adapter (limit 1e-02" in lines[-1]
    assert lines[-1].endswith("the adapter's effect is 3.0e-01")


def test_watch_warns_of_a_merge_that_is_far_from_what_was_trained(installation: CliInstallation) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    far, near = ({"mean_kl_nats": kl, "max_kl_nats": kl, "max_logit_difference": 0.07} for kl in (0.3, 2.5e-5))
    fidelity = {
        "positions": 152,
        "limit_nats": 1e-2,
        "adapter_divergence": near,
        "training_divergence": far,
        "effect": far,
    }
    leases.finish(lease, {"model_digest": "a" * 64, "fidelity": fidelity})
    last = installation.mens("jobs", "watch", lease.job.id).splitlines()[-1]
    assert last.startswith("warning: The merged model has lost a part of the training: ")
