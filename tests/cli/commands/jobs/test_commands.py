"""``mens jobs`` against a real API on a real socket; the tests take the worker's place."""

from __future__ import annotations

import json

import pytest

from shared.database.leases import Leases
from shared.database.records import NewEvent
from shared.database.tenancy import Role
from shared.errors import Code, JobFailed
from tests.support.builders import claimed, new_adapter, submission
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network


def test_log_of_a_failed_attempt_is_printed(installation: CliInstallation) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "It crashed."), "one\ntwo\n")
    printed = installation.invoke("jobs", "logs", lease.job.id)
    assert (printed.stdout, printed.stderr) == ("one\ntwo\n", "attempt 1\n")
    assert installation.invoke("jobs", "logs", lease.job.id, "--bytes", "5").stdout == "two\n"
    assert "no log is kept" in installation.invoke("jobs", "logs", lease.job.id, "--attempt", "2").stderr
    installation.become("guest", "acme", Role.TRAINER)
    assert "JOB_NOT_FOUND" in installation.mens("jobs", "logs", lease.job.id, code=1), "other tenants see the job alone"


def test_list_filters_and_pages(installation: CliInstallation) -> None:
    jobs = installation.services.jobs
    made = [
        jobs.submit(submission(name=f"n{number}", contract={"artifact": {"alias": "prod"}}))[0].id
        for number in range(3)
    ]
    other = jobs.submit(submission(name="other", base_model="large"))[0].id
    jobs.cancel(other)

    def listed(*options: str) -> list[str]:
        lines = installation.invoke("jobs", "list", *options).stdout.splitlines()
        return [line.split("\t")[0] for line in lines]

    assert listed() == [other, *reversed(made)]
    assert listed("--alias", "prod", "--state", "queued", "--since", "2h") == made[::-1]
    assert listed("--base", "large") == listed("--find", "other") == listed("--state", "cancelled") == [other]
    assert listed("--by", "nobody") == listed("--since", "2100-01-01") == []
    first = installation.invoke("jobs", "list", "--limit", "2")
    assert first.stderr == f"for older ones, repeat the command with --after ftjob-…{made[2][-6:]}\n"
    assert listed("--limit", "2", "--after", made[2]) == [made[1], made[0]]
    assert "is not a time: give 2h, 7d" in installation.invoke("jobs", "list", "--since", "soon", code=2).output


def test_checkpoints_have_steps_and_losses(installation: CliInstallation) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    nothing = installation.invoke("jobs", "checkpoints", lease.job.id)
    assert "no checkpoint is stored" in nothing.stderr
    metrics = {"train_loss": 0.5, "valid_loss": 0.25, "valid_mean_token_accuracy": 1.0}
    made = [
        new_adapter("demo@2", digest="e" * 64, step=20, metrics=metrics),
        new_adapter("demo@1", step=10, final=False, published=False),
    ]
    leases.finish(lease, {}, adapters=made)
    printed = installation.invoke("jobs", "checkpoints", lease.job.id).stdout.splitlines()
    assert printed == [
        "id\tstep\ttraining loss\tvalidation loss\tvalidation accuracy\tstate",
        "demo@2\t20 (result)\t0.5\t0.25\t1\tpublished",
        "demo@1\t10\t-\t-\t-\tstored",
    ]
    listed = json.loads(installation.invoke("jobs", "checkpoints", lease.job.id, "--json").stdout)
    assert [adapter["step"] for adapter in listed] == [20, 10]


def test_compare_prints_what_differs(installation: CliInstallation, rows: str) -> None:
    for epochs in ("2", "3"):
        installation.mens(
            "train", rows, "--model", "tiny", "--epochs", epochs, "--batch-size", "2", "--no-publish", "--no-watch"
        )
    later, earlier = (job.id for job in installation.services.jobs.list(after=None, limit=2))
    printed = installation.mens("jobs", "compare", earlier, later)
    assert "exec.epochs\t2 (explicit)\t3 (explicit)\n" in printed
    assert "exec.batch_size" not in printed
    assert "exec.batch_size" in installation.mens("jobs", "compare", earlier, later, "--all")
    found = json.loads(installation.mens("jobs", "compare", earlier, later, "--baseline", later, "--json"))
    assert found["baseline"] == later


def test_compare_prints_whole_numbers_whole(installation: CliInstallation) -> None:
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    made = []
    for loss, peak in ((0.123456789, 453_709_824), (2.0, 453_709_825)):
        lease = claimed(jobs, leases)
        leases.finish(lease, {"last_train_loss": loss, "memory": {"peak_bytes": peak}})
        made.append(lease.job.id)
    printed = installation.mens("jobs", "compare", *made)
    assert "memory.peak_bytes\t453709824\t453709825\n" in printed
    assert "last_train_loss\t0.123457\t2\n" in printed


def test_show_prints_the_last_events(installation: CliInstallation, rows: str) -> None:
    installation.mens("train", rows, "--model", "tiny", "--no-watch")
    (job,) = installation.services.jobs.list(after=None, limit=1)
    leases = Leases(installation.services.database, 60)
    lease = leases.claim(job.id, "test")
    assert lease
    for number in range(30):
        leases.report(lease, events=[NewEvent(message=f"Event {number}.")])
    messages = [line.split("  ")[-1] for line in installation.mens("jobs", "show", lease.job.id).splitlines()]
    assert messages[-10:] == [f"Event {number}." for number in range(20, 30)]
    assert "Event 19." not in messages


def test_show_prints_both_models_and_their_answers(installation: CliInstallation, rows: str) -> None:
    installation.mens("train", rows, "--model", "tiny", "--no-watch")
    (job,) = installation.services.jobs.list(after=None, limit=1)
    leases = Leases(installation.services.database, 60)
    lease = leases.claim(job.id, "test")
    assert lease
    measured = {
        "source": "held_out",
        "rows": 9,
        "rows_available": 10,
        "tokens": 40,
        "loss": {"base": 2.5, "tuned": 1.25, "row_difference": -1.2, "interval": [-1.4, -1.0]},
        "token_accuracy": None,
        "sample_answers": [
            {
                "line": 3,
                "role": "user",
                "prompt": "What is\na bug?\x1b[31m",
                "turns": 1,
                "reference": "A mistake.",
                "base": "",
                "tuned": "A mis",
                "base_ended": True,
                "tuned_ended": False,
            }
        ],
    }
    leases.finish(lease, {"adapter_id": "demo@1", "self_evaluation": measured})
    shown = installation.mens("jobs", "show", job.id).splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("against base"))
    change = "better by 1.2000 on an average row (1.0000 to 1.4000; each end holds with 95 % confidence)"
    assert shown[at : at + 8] == [
        "against base  9 of 10 held-out rows; 40 supervised tokens",
        f"              loss 2.5000 -> 1.2500 nats per token; {change}",
        "              0 of 1 sample answer equals its reference",
        "sample 1, line 3",
        "  user      What is a bug?[31m",
        "  reference A mistake.",
        "  base      (nothing)",
        "  tuned     A mis [cut]",
    ]
