"""``mens train`` and ``mens jobs`` against a real API on a real socket; the tests do what a worker would do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.client.connection import send
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.database.leases import Leases
from shared.database.records import NewEvent
from shared.database.tenancy import Role
from shared.errors import Code, JobFailed
from shared.worker_registry import WorkerMachine
from tests.support.builders import claimed, new_adapter, submission
from tests.support.cli_installation import CliInstallation
from tests.support.gate_rows import govern
from tests.support.parents import add_adapter, manifest_of
from tests.support.tiny_base import write_base

KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer\nwas killed.", retryable=True)
AGAIN = "TRAINER_KILLED: The trainer was killed. Trying again in 1 s."

pytestmark = pytest.mark.network


@pytest.fixture
def rows(tmp_path: Path, installation: CliInstallation) -> str:
    """A file to tune the base ``tiny`` on, for a tier with a replica."""
    folder, settings = write_base(tmp_path / "bases" / "tiny"), installation.services.settings
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))
    save_catalog(settings.catalog_path, Catalog(bases=[entry]))
    settings.serving_urls[:] = ["http://127.0.0.1:9"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return str(tmp_path / "rows.jsonl")


def test_train_notes_an_alias_that_will_be_hidden(installation: CliInstallation, rows: str) -> None:
    installation.register(new_adapter("demo@1"))
    installation.mens("aliases", "set", "prod", "demo@1")
    train = ["train", rows, "--model", "tiny", "--no-watch", "--alias"]
    assert "hidden" not in installation.mens(*train, "prod"), "it is its own"
    installation.become("tess", "acme", Role.TRAINER)
    hidden = (
        "note: once the job succeeds, the alias prod of shared (demo@1) is hidden from acme; "
        "`mens aliases delete prod` shows it again"
    )
    assert hidden in installation.mens(*train, "prod").splitlines()
    assert "hidden" not in installation.mens(*train, "prod", "--no-publish"), "then no alias moves"
    assert "hidden" not in installation.mens(*train, "new")


def test_train_refuses_invalid_alias(installation: CliInstallation, rows: str) -> None:
    refused = installation.mens("train", rows, "--model", "tiny", "--no-watch", "--alias", "a/b", code=1)
    assert refused.startswith("error: NAME_INVALID: artifact.alias: 'a/b' is not a valid name: lower-case letters")


def test_lenient_skips_bad_lines(installation: CliInstallation, rows: str) -> None:
    with Path(rows).open("a") as file:
        file.write("oops\n")
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    assert installation.mens(*train, code=1).startswith("error: DATASET_LINE_INVALID")
    assert "30 rows" in installation.mens(*train, "--lenient"), "10 of the 40 valid rows are held out"


TINY = {"model": {"hf_repo": "tiny"}}


@pytest.mark.parametrize(
    ("sections", "options", "section", "expected"),
    [
        (TINY | {"artifact": {"publish": False}}, [], "artifact", {"publish": False}),
        (TINY | {"artifact": {"publish": False}}, ["--publish"], "artifact", {"publish": True}),
        (TINY, ["--no-publish"], "artifact", {"publish": False}),
        (TINY, [], "artifact", {"publish": True}),
        ({"model": {"name": "tiny"}}, [], "model", {"hf_repo": "tiny"}),
        ({"model": {"name": "other"}}, ["--model", "tiny"], "model", {"hf_repo": "tiny"}),
        (TINY | {"adapter": {"r": 8}}, [], "adapter", {"rank": 8}),
        (TINY | {"adapter": {"r": 8}}, ["--rank", "4"], "adapter", {"rank": 4}),
        (TINY | {"adapter": {"r": 8, "lora_alpha": 8}}, ["--alpha", "64"], "adapter", {"rank": 8, "alpha": 64}),
    ],
)
def test_options_are_put_over_a_contract_file_and_defaults_under_it(
    installation: CliInstallation,
    rows: str,
    tmp_path: Path,
    sections: Any,
    options: list[str],
    section: str,
    expected: Any,
) -> None:
    (tmp_path / "contract.json").write_text(json.dumps(sections))
    train = ["train", rows, "--contract", str(tmp_path / "contract.json"), "--no-watch", "--json", *options]
    contract = json.loads(installation.invoke(*train).stdout)["contract"]
    assert {name: contract[section][name] for name in expected} == expected


def test_further_flags_are_fields_of_the_job(installation: CliInstallation, rows: str) -> None:
    flags = ["--alpha", "64", "--target-modules", "q_proj", "--adapter-tag", "2024", "--curriculum=false"]
    made = installation.invoke("train", rows, "--model", "tiny", "--no-watch", "--json", *flags)
    job = json.loads(made.stdout)
    assert (job["contract"]["adapter"]["alpha"], job["contract"]["adapter"]["target_modules"]) == (64, ["q_proj"])
    assert (job["name"], job["contract"]["curriculum"]["enabled"]) == ("2024", False)


def test_a_missing_default_base_is_said_to_be_the_default_and_others_are_named(
    installation: CliInstallation, rows: str
) -> None:
    named = installation.mens("train", rows, "--no-watch", "--model", "tinny", code=1)
    assert "The base model 'tinny' is not in this installation's catalogue (it has: tiny)." in named
    path = installation.services.settings.catalog_path
    [tiny] = load_catalog(path).bases
    save_catalog(path, Catalog(bases=[tiny.model_copy(update={"name": "other"}), tiny]))
    refused = installation.mens("train", rows, "--no-watch", code=1)
    assert refused.startswith(f"error: MODEL_NOT_FOUND: No model was named, and the default, '{DEFAULT_MODEL_ID}',")
    assert "(it has: other, tiny). Name one of them: --model other." in refused


def test_only_base_is_taken_where_none_is_named(installation: CliInstallation, rows: str) -> None:
    job = json.loads(installation.invoke("train", rows, "--no-watch", "--json").stdout)
    assert job["contract"]["model"]["hf_repo"] == job["base_model"] == "tiny"


@pytest.mark.parametrize(
    ("options", "row", "code"),
    [
        (["--rank", "99999"], "", "CONTRACT_INVALID"),
        (["--model", "nobody"], "", "MODEL_NOT_FOUND"),
        ([], "oops\n", "DATASET_LINE_INVALID"),
    ],
)
def test_what_can_be_checked_without_an_upload_is_checked_before_it(
    installation: CliInstallation, rows: str, options: list[str], row: str, code: str
) -> None:
    with Path(rows).open("a") as file:
        file.write(row)
    train = ["train", rows, "--no-watch", "--json", "--model", "tiny", *options]
    error = json.loads(installation.invoke(*train, code=1).stdout)["error"]
    assert error["code"] == code
    train.remove("--json")
    assert installation.mens(*train, code=1).endswith("nothing was uploaded")
    assert uploaded(installation) == []


def test_a_base_that_is_not_served_is_refused_before_the_upload(
    installation: CliInstallation, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    monkeypatch.setattr(installation.services.replicas, "serves_adapters_of", lambda _digest: False)
    refused = installation.mens(*train, code=1)
    assert refused.startswith("error: NOT_SERVABLE_BASE: tiny is not served here.")
    assert "`mens up --base tiny`" in refused
    assert refused.endswith("nothing was uploaded")
    assert uploaded(installation) == []
    installation.mens(*train, "--no-publish")


def test_files_of_a_refused_job_are_deleted_again(installation: CliInstallation, rows: str) -> None:
    refused = ["--model", "tiny", "--no-watch", "--validation", rows, "--target-modules", "foo"]
    shown = installation.mens("train", rows, *refused, code=1)
    assert "error: TARGET_MODULES_UNKNOWN" in shown
    assert len(re.findall(r"the request was refused; its uploaded file file-\w+ was deleted", shown)) == 2
    assert uploaded(installation) == []


def test_an_outage_after_a_refusal_does_not_hide_it(installation: CliInstallation, rows: str) -> None:
    def refuse(*_: Any) -> None:
        raise httpx.ConnectError("away")

    installation.patch.setattr(httpx.Client, "delete", refuse)
    refused = installation.mens("train", rows, "--model", "tiny", "--no-watch", "--target-modules", "foo", code=1)
    assert "error: TARGET_MODULES_UNKNOWN" in refused
    assert "could not be deleted" in refused


def test_files_stay_when_the_api_fails(
    installation: CliInstallation, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_with_outage(method: str, path: str, **request: Any) -> httpx.Response:
        return httpx.Response(503) if path == "/v1/jobs" else send(method, path, **request)

    monkeypatch.setattr("cli.client.uploads.send", send_with_outage)
    assert "API_UNAVAILABLE" in installation.mens("train", rows, "--model", "tiny", "--no-watch", code=1)
    assert len(uploaded(installation)) == 1, "the job may be there all the same"


def uploaded(installation: CliInstallation) -> list[Any]:
    """The files that the tenant has."""
    return [file.id for file in installation.services.files.list(after=None, limit=10, purpose=None, newest_first=True)]


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


def test_train_says_where_and_how_long(
    installation: CliInstallation, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    (guessed,) = (line for line in installation.mens(*train).splitlines() if line.startswith("device: "))
    assert guessed.startswith("device: not known, planned as a GPU (no worker has reported); memory: estimated peak ")
    assert guessed.endswith(
        ", 200 ms a step, a guess: the device's speed is not known; without loading, evaluation and publishing"
    )
    worker = WorkerMachine(device="cpu", host_bytes=16 << 30, cores=2)
    monkeypatch.setattr(installation.services.workers, "machines", lambda: [worker])
    assert "device: CPU (the workers); memory: " in (said := installation.mens(*train))
    assert ", from FLOPs, a guess: " in said
    leases = Leases(installation.services.database, 60)
    lease = leases.claim(installation.services.jobs.list(after=None, limit=1)[0].id, "test")
    assert lease
    leases.finish(lease, {"tokens_per_second": 1000.0})
    assert f", measured on this base by {lease.job.id}: 1000 tokens per second" in installation.mens(*train)


def test_train_prints_the_job_as_json(installation: CliInstallation, rows: str) -> None:
    made = installation.invoke("train", rows, "--model", "tiny", "--no-watch", "--json")
    assert json.loads(made.stdout)["id"].startswith("ftjob-")
    assert "created ftjob-" in made.stderr


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
    assert first.stderr == f"older ones: the same command with --after ftjob-…{made[2][-6:]}\n"
    assert listed("--limit", "2", "--after", made[2]) == [made[1], made[0]]
    assert "is not a time: give 2h, 7d" in installation.invoke("jobs", "list", "--since", "soon", code=2).output


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
    assert lines[-2].endswith(f"`mens up --base {'a' * 12}` serves it as a base of its own")
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
    change = "better by 1.2000 on an average row (1.0000 to 1.4000; each end holds with 95 %)"
    assert shown[at : at + 8] == [
        "against base  9 of 10 held-out rows; 40 supervised tokens",
        f"              loss 2.5000 -> 1.2500 nats per token; {change}",
        "              0 of 1 sample answers equal their reference",
        "sample 1, line 3",
        "  user      What is a bug?[31m",
        "  reference A mistake.",
        "  base      (nothing)",
        "  tuned     A mis [cut]",
    ]


def test_train_continues_from_an_adapter(installation: CliInstallation, rows: str) -> None:
    """By a prefix of its id, an alias, or another provider's name; its base is then the job's."""
    catalog = load_catalog(installation.services.settings.catalog_path)
    other = catalog.bases[0].model_copy(update={"name": "other"})
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[other, *catalog.bases]))
    parent = add_adapter(installation.services.database, manifest_of(catalog.bases[0]))
    installation.mens("aliases", "set", "prod", parent)
    installation.mens("names", "map", "ft:gpt-4o:acme::1", "prod")
    for name in (parent[:14], "prod", "ft:gpt-4o:acme::1"):
        job = json.loads(installation.invoke("train", rows, "--continue", name, "--no-watch", "--json").stdout)
        assert (job["base_model"], job["plan"]["parent"]["id"]) == ("tiny", parent)
    refused = installation.mens("train", rows, "--continue", "nobody", "--no-watch", code=1)
    assert "nobody" in refused
    assert "CONTINUE_BASE_MISMATCH" not in installation.mens(
        "train", rows, "--continue", "prod", "--model", "tiny", "--no-watch"
    )
