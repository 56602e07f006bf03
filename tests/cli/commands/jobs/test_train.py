"""``mens train`` against a real API on a real socket; the tests take the worker's place."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.client.connection import send
from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.contract.sections import DEFAULT_MODEL_ID
from shared.database.leases import Leases
from shared.database.tenancy import Role
from shared.worker_registry import WorkerMachine
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.parents import add_adapter, manifest_of

pytestmark = pytest.mark.network


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


def test_terms_of_models_that_wrote_rows_are_in_the_contract(installation: CliInstallation, rows: str) -> None:
    """They stand in the provenance of the rows, which stays on this machine; the adapter's manifest and card show them."""
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    note = {"model": "large-2", "endpoint": "https://models.example.com/v1", "terms": "permits_training"}
    ours = {"model": "helper@1", "endpoint": "installation"}
    sources = Path(rows).with_suffix("").with_suffix(".sources.jsonl")
    written = [{"a": note}, {"a": note, "b": ours}, {"b": ours}, None]
    lines = ({"id": str(n), "source": "s", "locator": {}, "generator": one} for n, one in enumerate(written))
    sources.write_text("".join(json.dumps(line) + "\n" for line in lines))
    contract = Path(rows).with_name("contract.json")
    contract.write_text(json.dumps({"provenance": {"answer_models": ["stated by hand"]}}))
    installation.mens(*train, "--contract", str(contract))
    sources.write_text('{"terms": "of another program"}\n')
    installation.mens(*train)
    newer, job = send("GET", "/v1/jobs").json()["data"]
    said = ["large-2 (https://models.example.com/v1): permits_training"]
    assert job["contract"]["provenance"]["answer_models"] == [*said, "stated by hand"]
    assert newer["contract"]["provenance"]["answer_models"] is None


def test_rows_of_a_table_are_pulled_and_further_flags_stay_flags(
    installation: CliInstallation, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(rows).parent)
    with sqlite3.connect("desk.db") as database:
        database.execute("CREATE TABLE asked (number integer PRIMARY KEY, prompt text, response text)")
        asked = [(number, f"Question {number} of ann@example.org?", f"Answer {number}.") for number in range(40)]
        database.executemany("INSERT INTO asked VALUES (?, ?, ?)", asked)
    table = ["train", "--from-table", "desk.db", "--sql", "SELECT * FROM asked", "--key", "number"]
    output = installation.mens(*table, "--alpha", "64", "--model", "tiny", "--no-watch")
    assert "pulled 40 new rows" in output
    assert "replaced personal data: 40 EMAIL" in output
    (job,) = send("GET", "/v1/jobs").json()["data"]
    assert job["contract"]["adapter"]["alpha"] == 64
    assert len(Path("pulled/desk.jsonl").read_bytes().splitlines()) == 40
    refused = installation.mens(*table, "--model", "tiny", "extra.jsonl", code=1)
    assert "error: CONTRACT_INVALID: 'extra.jsonl' is not a flag." in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a JSONL file, or a table with --from-table."),
        (["absent.jsonl"], "File 'absent.jsonl' does not exist."),
        (["--sql", "SELECT 1"], "It needs --from-table NAME."),
    ],
)
def test_call_without_rows_says_what_is_missing(
    installation: CliInstallation, arguments: list[str], message: str
) -> None:
    assert message in installation.mens("train", *arguments, "--model", "tiny", code=2)


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


def test_bases_are_named_where_none_was_and_the_default_is_not_there(installation: CliInstallation, rows: str) -> None:
    named = installation.mens("train", rows, "--no-watch", "--model", "tinny", code=1)
    assert "The base model 'tinny' is not in this installation's catalogue (it has: tiny)." in named
    path = installation.services.settings.catalog_path
    [tiny] = load_catalog(path).bases
    save_catalog(path, Catalog(bases=[tiny.model_copy(update={"name": "other"}), tiny]))
    refused = installation.mens("train", rows, "--no-watch", code=1)
    several = "No base model was named, and the catalogue has several: other, tiny."
    assert refused.startswith(f"error: MODEL_NOT_FOUND: {several} Name one, on the command line by `--model other`.")
    assert DEFAULT_MODEL_ID not in refused


def test_only_base_is_taken_where_none_is_named(installation: CliInstallation, rows: str) -> None:
    job = json.loads(installation.invoke("train", rows, "--no-watch", "--json").stdout)
    assert job["contract"]["model"]["hf_repo"] == job["base_model"] == "tiny"


@pytest.mark.parametrize(
    ("options", "row", "code"),
    [
        (["--rank", "99999"], "", "CONTRACT_INVALID"),
        (["--rank", "512"], "", "NOT_SERVABLE_RANK"),
        (["--seq-len", "1000000"], "", "SEQ_LEN_TOO_LARGE"),
        (["--model", "nobody"], "", "MODEL_NOT_FOUND"),
        ([], "oops\n", "DATASET_LINE_INVALID"),
    ],
)
def test_what_can_be_checked_without_an_upload_is_checked_before_it(
    installation: CliInstallation,
    rows: str,
    options: list[str],
    row: str,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation.services.replicas, "max_lora_rank", lambda _digest: 32)
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


def test_train_says_where_and_how_long(
    installation: CliInstallation, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", rows, "--model", "tiny", "--no-watch"]
    (guessed,) = (line for line in installation.mens(*train).splitlines() if line.startswith("device: "))
    assert guessed.startswith("device: not known, planned as a GPU (no worker has reported); memory: estimated peak ")
    assert guessed.endswith(
        ", 200 ms per step, a guess: the device's speed is not known; without loading, evaluation and publishing"
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
