"""Shortened ids, against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from cli.client.connection import call
from cli.client.id_prefixes import EVAL_RUNS, EVALS, FILES, RECEIPTS
from shared.database.records import Kind
from shared.database.tenancy import SHARED, Role
from tests.support.builders import new_adapter, submission
from tests.support.cli_installation import CliInstallation

OLD, NEW, OTHER = (f"demo@{digits:0<64}" for digits in ("1f3c9a2b", "1f3c9a2e", "9c"))

pytestmark = pytest.mark.network


@pytest.fixture
def with_adapters(installation: CliInstallation) -> CliInstallation:
    """Three adapters of one name; the digests of two begin alike."""
    installation.register(*(new_adapter(adapter, final=adapter == OLD) for adapter in (OLD, NEW, OTHER)))
    return installation


def test_prefix_resolves_to_the_adapter(with_adapters: CliInstallation) -> None:
    assert with_adapters.mens("aliases", "set", "prod", "demo@9c") == f"prod → {OTHER}, version 1"
    split = with_adapters.mens(
        "aliases", "split", "prod", "demo@9…=90", "demo@1f3c9a2e=10", "--shadow", "demo@1f3c9a2b"
    )
    assert split == f"prod → {OTHER} 90 %, {NEW} 10 % (shadow: {OLD} 10 %), version 2"
    assert with_adapters.mens("models", "show", "demo@9").startswith(f"{OTHER}  checkpoint, published")


def test_ambiguous_prefix_lists_the_adapters(with_adapters: CliInstallation) -> None:
    several = "error: ID_AMBIGUOUS: demo@1f3 is a part of several ids. Type more characters of the id.\n"
    output = with_adapters.mens("aliases", "set", "prod", "demo@1f3", code=1)
    assert output.startswith(several)
    assert sorted(output.removeprefix(several).split()) == [OLD, NEW]
    assert with_adapters.mens("aliases", "list") == ""


def test_chat_resolves_a_prefix(with_adapters: CliInstallation) -> None:
    unserved = with_adapters.mens("chat", OTHER, "hi", code=1)
    assert "MODEL_NOT_FOUND" not in unserved
    assert with_adapters.mens("chat", "demo@9", "hi", code=1) == unserved
    assert with_adapters.mens("chat", "demo@e", "hi", code=1).startswith("error: MODEL_NOT_FOUND")


def test_unknown_prefix_is_refused_by_the_api(with_adapters: CliInstallation) -> None:
    assert with_adapters.mens("aliases", "set", "prod", "demo@e", code=1).startswith("error: ADAPTER_NOT_FOUND")
    assert with_adapters.mens("models", "show", "demo@e", code=1).startswith("error: MODEL_NOT_FOUND")
    assert "demo" in with_adapters.mens("aliases", "set", "prod", "demo", code=1), "a name alone may be an alias's"


def test_whole_id_that_is_a_prefix_of_another_stands_for_itself(with_adapters: CliInstallation) -> None:
    with_adapters.register(new_adapter("short@1"), new_adapter("short@12", final=False))
    assert with_adapters.mens("aliases", "set", "prod", "short@1") == "prod → short@1, version 1"


def test_deletion_needs_eight_digits_and_names_the_adapter(with_adapters: CliInstallation) -> None:
    refused = with_adapters.mens("models", "delete", "demo@9c00000", "--yes", code=1)
    assert refused == f"error: demo@9c00000 matches {OTHER}; give the whole id here, or at least 8 of its digits"
    assert "ID_AMBIGUOUS" in with_adapters.mens("models", "delete", "demo@1f3c9a2", "--yes", code=1)
    assert with_adapters.mens("models", "delete", "demo@9c000000", code=1).startswith(f"Delete {OTHER}?"), (
        "it was not confirmed"
    )
    assert with_adapters.mens("models", "delete", "demo@9c000000", "--yes").startswith(f"{OTHER} is deleted")
    assert OTHER not in with_adapters.mens("models")


def test_prefix_resolves_to_the_job(installation: CliInstallation) -> None:
    jobs = installation.services.jobs
    first, second = (jobs.submit(submission())[0].id for _ in range(2))
    common = next(first[:end] for end in range(len(first), 0, -1) if second.startswith(first[:end]))
    output = installation.mens("jobs", "cancel", common, code=1)
    assert sorted(output.splitlines()[1:]) == [f"  {first}", f"  {second}"]
    error = json.loads(installation.invoke("jobs", "show", common, "--json", code=1).stdout)["error"]
    assert (error["code"], sorted(error["details"]["ids"]), error["retryable"]) == (
        "ID_AMBIGUOUS",
        [first, second],
        False,
    )
    own = first[: len(common) + 1]
    assert installation.mens("jobs", "cancel", own) == f"{first} is cancelled"
    assert installation.mens("jobs", "pause", f"{second[:-1]}…") == f"{second} is paused"
    assert installation.mens("jobs", "show", "ftjob-zzz", code=1).startswith("error: JOB_NOT_FOUND")


def test_prefix_resolves_to_the_job_whose_id_is_the_greatest_that_begins_so(
    installation: CliInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    greatest = f"ftjob-{'0':z<26}"
    monkeypatch.setattr("shared.database.jobs.new_id", lambda _: greatest)
    installation.services.jobs.submit(submission())
    assert installation.mens("jobs", "cancel", greatest[:-1]) == f"{greatest} is cancelled"


def test_ambiguous_job_prefix_lists_ten_jobs(installation: CliInstallation) -> None:
    jobs = [installation.services.jobs.submit(submission())[0].id for _ in range(12)]
    *listed, last = installation.mens("jobs", "show", "ftjob-0", code=1).splitlines()[1:]
    assert [line.strip() for line in listed] == sorted(jobs, reverse=True)[:10]
    assert last == "  …"


def test_end_of_a_job_id_and_the_short_form_of_tables_resolve(installation: CliInstallation) -> None:
    first, second = (
        installation.services.jobs.submit(submission(kind=Kind.IMPORT, name="3fk2a8"))[0].id for _ in range(2)
    )
    end = next(first[-count:] for count in range(3, 26) if not second.endswith(first[-count:]))
    for part in (end, f"…{end}", f"ftjob-…{end}", f"ftjob-...{end}", first.removeprefix("ftjob-")):
        assert installation.mens("jobs", "show", part).startswith(first), part
    assert "JOB_NOT_FOUND" in installation.mens("jobs", "show", "3fk2a8", code=1), "a name is no id"
    assert "JOB_NOT_FOUND" in installation.mens("jobs", "show", f"ftjob-zz…{end}", code=1)
    assert sorted(installation.mens("jobs", "show", f"{first[:10]}…", code=1).split()[-2:]) == sorted([first, second])


def test_digits_of_an_adapter_resolve_without_its_name(with_adapters: CliInstallation) -> None:
    assert with_adapters.mens("models", "show", "1f3c9a2b").startswith(OLD)
    assert with_adapters.mens("models", "show", "demo@1f…e" + "0" * 56).startswith(NEW)
    assert "ID_AMBIGUOUS" in with_adapters.mens("models", "show", "1f3c9a", code=1)
    assert "MODEL_NOT_FOUND" in with_adapters.mens("models", "show", "1f3c9", code=1), "so few may be a name's"
    with_adapters.mens("aliases", "set", "9c0000", OLD)
    assert with_adapters.mens("models", "show", "9c0000").startswith("9c0000  alias"), "names come first"


def test_part_of_a_receipt_or_file_id_resolves(installation: CliInstallation) -> None:
    files = installation.services.files
    made = [files.add(f"{name}.jsonl", "fine-tune", 1, name * 64, store=lambda: None).id for name in "ab"]
    end = next(made[0][-count:] for count in range(3, 26) if not made[1].endswith(made[0][-count:]))
    assert FILES.resolve(end) == FILES.resolve(f"file-…{end}") == made[0]
    assert FILES.resolve(made[0][:-1] if made[1][:-1] != made[0][:-1] else made[0]) == made[0]
    assert RECEIPTS.resolve("receipt-01") == "receipt-01", "there is none"


def unique_end(one: str, other: str) -> str:
    return next(one[-count:] for count in range(3, 27) if not other.endswith(one[-count:]))


def test_part_of_an_eval_or_webhook_id_resolves(installation: CliInstallation) -> None:
    url = "https://example.com/hook"
    hooks = [json.loads(installation.mens("webhooks", "create", url, "--json"))["id"] for _ in range(2)]
    assert installation.mens("webhooks", "delete", unique_end(*hooks)) == f"{hooks[0]} is deleted"
    grader = {
        "type": "string_check",
        "name": "g",
        "input": "{{sample.output_text}}",
        "operation": "eq",
        "reference": "x",
    }
    source = {"type": "custom", "item_schema": {"type": "object"}, "include_sample_schema": True}
    body = {"data_source_config": source, "testing_criteria": [grader]}
    made = [call("POST", "/v1/evals", json=body)["id"] for _ in "ab"]
    assert EVALS.resolve(unique_end(*made)) == EVALS.resolve(f"eval-…{unique_end(*made)}") == made[0]
    assert EVALS.resolve(made[1][:-1] if made[1][:-1] != made[0][:-1] else made[1]) == made[1]


def test_part_of_the_id_of_a_judging_run_resolves() -> None:
    listed = [f"evalrun-{'0':y<25}{end}" for end in "abc"]
    assert EVAL_RUNS.among("yyb", listed) == EVAL_RUNS.among("evalrun-…yb", listed) == listed[1]
    job = f"ftjob-{'0':z<26}"
    assert EVAL_RUNS.among(job, iter(())) == job


def test_part_of_a_key_id_resolves_after_names(installation: CliInstallation) -> None:
    ids = [installation.services.keys.create(name, SHARED, Role.VIEWER)[0].id for name in ("one", "two")]
    end = unique_end(*ids)
    assert installation.mens("keys", "limit", end, "--rpm", "5").startswith(ids[0])
    named = installation.services.keys.create(end, SHARED, Role.VIEWER)[0].id
    assert installation.mens("keys", "revoke", end).startswith(named)
    assert "KEY_REVOKED" in installation.mens("keys", "revoke", end, code=1), "no other key is meant"


def test_prefix_of_another_tenants_job_is_not_found(with_adapters: CliInstallation) -> None:
    with_adapters.become("tess", "acme", Role.TRAINER)
    mine = with_adapters.services.jobs.of("acme").submit(submission())[0].id
    with_adapters.become("tom", "other", Role.TRAINER)
    assert "JOB_NOT_FOUND" in with_adapters.mens("jobs", "show", mine[:-1], code=1)
