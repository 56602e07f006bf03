"""``mens migrate openai plan | train | switch`` on a real API; the tests take the place of the worker and the gate."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_migration.archive.folder import Archive
from openai_migration.receipts import Counts, MigrationReceipt, Noise, write_receipt
from openai_migration.successors.switching import aliases_for
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.database.leases import Leases
from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from shared.statistics.paired import Status
from tests.support.asgi_server import serve
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.doubles import FakeJobQueue
from tests.support.fake_openai import KEY, NAMELESS, TUNED, ServedOpenAI, chat_line
from tests.support.tiny_base import write_base

pytestmark = pytest.mark.network

ADAPTER = f"support@{'a' * 64}"


@pytest.fixture
def archive(tmp_path: Path, openai: ServedOpenAI, installation: CliInstallation) -> Path:
    """A converted archive of the first project, and an installation with the bases tiny and wide."""
    settings, bases = installation.services.settings, []
    for name, layers in (("tiny", 2), ("wide", 4)):
        folder = write_base(tmp_path / "bases" / name, num_hidden_layers=layers)
        source = LocalSource(path=str(folder))
        bases.append(BaseModelEntry(name=name, source=source, digests=digest_model_folder(folder)))
    save_catalog(settings.catalog_path, Catalog(bases=bases))
    settings.serving_urls[:] = ["http://127.0.0.1:9"]
    object.__setattr__(installation.services, "job_queue", FakeJobQueue())
    rows = b"".join(chat_line(f"What is {number}?", f"It is {number}.") for number in range(40))
    (tmp_path / "train.jsonl").write_bytes(rows)
    project = openai.fake.projects[KEY]
    project.lists["files"][0]["bytes"] = len(rows)
    labelled = (chat_line(f"Where is number {number}?", f"answer of {TUNED}") for number in range(30))
    project.contents["file-valid"] = b"".join(labelled)
    folder = tmp_path / "archive"
    installation.mens("migrate", "openai", "export", str(folder))
    installation.mens("migrate", "openai", "convert", str(folder), "--original", str(tmp_path / "train.jsonl"))
    return folder


def step(installation: CliInstallation, name: str, archive: Path, *arguments: str, code: int = 0) -> str:
    return installation.mens("migrate", "openai", name, str(archive), *arguments, code=code)


def read(archive: Path, pattern: str) -> dict[str, Any]:
    (path,) = archive.glob(pattern)
    assert path.stat().st_mode & 0o777 == 0o600
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def finish_jobs(installation: CliInstallation) -> None:
    """Do what a worker does with every queued job; the adapters are named by the job's name."""
    leases = Leases(installation.services.database, 60)
    for number, job in enumerate(installation.services.jobs.list(after=None, limit=10)):
        lease = leases.claim(job.id, "worker")
        if lease:
            adapter = f"{job.name}@{'abcdef'[number] * 64}"
            made = new_adapter(adapter, digest=adapter.partition("@")[2])
            leases.finish(lease, {"adapter_id": adapter}, adapters=[made])


def gate(archive: Path, model: str = TUNED, **changes: Any) -> None:
    """A receipt, as `gate` writes it."""
    rows = "data/OPENAI_API_KEY/file-valid.jsonl"
    receipt = MigrationReceipt(
        **{
            "foreign_model": model,
            "project": "OPENAI_API_KEY",
            "mens_model": ADAPTER,
            "adapters": [ADAPTER],
            "installation": "http://127.0.0.1",
            "verdict": Status.PASSED,
            "reason": "",
            "margin": 0.03,
            "confidence": 0.95,
            "counts": Counts(4, 4, {}),
            "gates": [],
            "graders": [],
            "noise": Noise(0, None),
            "inputs": {rows: digest_file(archive / rows)},
            "versions": {},
            "made_at": "2026-11-22T20:00:00+00:00",
        }
        | changes
    )
    with Archive(archive):
        write_receipt(archive, receipt)


# -- plan ----------------------------------------------------------------------------------------------------------------


def test_plan_says_where_each_value_is_from(installation: CliInstallation, archive: Path, openai: ServedOpenAI) -> None:
    openai.fake.requests.clear()
    output = step(installation, "plan", archive)
    assert f"{TUNED}: 40 rows" in output
    assert "exec.epochs = 2 (OpenAI: 2): used" in output
    assert "data.validation_split_ratio = 0 (OpenAI: file-valid): separate file" in output
    assert "A base may be worse than the model it replaces" in output
    made = read(archive, "plans/OPENAI_API_KEY/ft%3Agpt-4o-mini*/*.json")
    assert (made["base"], made["name"], made["contract"]["exec"]["seed"]) == ("wide", "support", 7), (
        "the largest that fits"
    )
    assert made["contract"]["exec"]["seq_len"] % 8 == 0
    assert made["train"]["path"] == "data/OPENAI_API_KEY/file-train.jsonl"
    assert made["estimate"]["context"] == 512
    assert not openai.fake.requests, "nothing is sent to OpenAI"


def test_bases_are_planned_each(installation: CliInstallation, archive: Path) -> None:
    step(installation, "plan", archive, "--bases", "tiny,wide", "--model", TUNED)
    assert sorted(path.stem for path in archive.glob("plans/*/*/*.json")) == ["tiny", "wide"]
    refused = installation.invoke("migrate", "openai", "plan", str(archive), "--bases", "huge", code=1)
    assert "The base 'huge' is not in the catalogue" in str(refused.exception)


def test_base_that_does_not_fit_is_said_and_not_planned(installation: CliInstallation, archive: Path) -> None:
    output = step(installation, "plan", archive, "--local", "--vram-gb", "0.01", code=1)
    assert "wide: not possible: MEMORY_DOES_NOT_FIT" in output
    assert "no base fits, according to this machine's catalogue, for a GPU of 0.0 GiB" in output
    assert not list(archive.glob("plans/*/*/*.json"))


def test_plan_without_an_installation(
    installation: CliInstallation, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MENS_API_URL")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    made = json.loads(installation.invoke("migrate", "openai", "plan", str(archive), "--model", TUNED, "--json").stdout)
    assert (made[0]["base"], made[0]["planned_for"]) == ("wide", "this machine, which has no GPU")


def test_model_without_rows_stops_no_other(installation: CliInstallation, archive: Path) -> None:
    report = json.loads((archive / "convert-report.json").read_text())
    for file in report["files"]:
        if file["file_id"] == "file-train":
            file["report"] = None
    (archive / "convert-report.json").write_text(json.dumps(report))
    output = step(installation, "plan", archive, code=1)
    assert f"{TUNED}: its training file file-train is not converted: give its original" in output


def test_rows_that_are_gone_are_named_with_the_remedy(installation: CliInstallation, archive: Path) -> None:
    (archive / "data/OPENAI_API_KEY/file-train.jsonl").unlink()
    output = step(installation, "plan", archive, code=1)
    assert f"{TUNED}: data/OPENAI_API_KEY/file-train.jsonl no longer exists; run `convert` again" in output


def test_dry_run_of_a_plan_writes_nothing(installation: CliInstallation, archive: Path) -> None:
    assert f"{TUNED}: on every base" in step(installation, "plan", archive, "--dry-run")
    assert not (archive / "plans").exists()
    assert not (archive / "uploads.json").exists()


# -- train ---------------------------------------------------------------------------------------------------------------


def test_jobs_are_created_once_however_often_it_is_run(installation: CliInstallation, archive: Path) -> None:
    step(installation, "plan", archive, "--bases", "tiny")
    assert f"{TUNED}: would be trained on tiny" in step(installation, "train", archive, "--dry-run")
    step(installation, "train", archive, "--no-watch")
    (
        archive / "train/OPENAI_API_KEY" / "ft%3Agpt-4o-mini-2024-07-18%3Aacme%3Asupport%3A9xAbCdEf" / "tiny.json"
    ).unlink()
    step(installation, "train", archive, "--no-watch")  # as after a kill before its record was written
    jobs = installation.services.jobs.list(after=None, limit=10)
    assert len(jobs) == 2, "one for each of the two tuned models"
    assert {job.labels["openai_model"] for job in jobs} == {TUNED, NAMELESS}
    assert len(installation.services.files.list(after=None, limit=10, purpose=None, newest_first=True)) == 2, (
        "the rows of both, and the validation rows of one"
    )
    finish_jobs(installation)
    output = installation.invoke("migrate", "openai", "train", str(archive), "--json").stdout
    assert {(done["state"], bool(done["adapter"])) for done in json.loads(output)} == {("succeeded", True)}


def test_edited_contract_is_another_training(installation: CliInstallation, archive: Path) -> None:
    step(installation, "plan", archive, "--bases", "tiny", "--model", TUNED)
    step(installation, "train", archive, "--no-watch")
    (path,) = archive.glob("plans/*/*/*.json")
    plan = json.loads(path.read_text())
    plan["contract"]["exec"]["epochs"] = 5
    path.write_text(json.dumps(plan))
    step(installation, "train", archive, "--no-watch")
    epochs = [job.contract["exec"]["epochs"] for job in installation.services.jobs.list(after=None, limit=10)]
    assert sorted(epochs) == [2, 5]


def test_one_that_fails_stops_no_other_and_is_tried_again_on_request(
    installation: CliInstallation, archive: Path
) -> None:
    step(installation, "plan", archive, "--bases", "tiny")
    step(installation, "train", archive, "--no-watch")
    jobs, leases = installation.services.jobs, Leases(installation.services.database, 60)
    bad = next(job for job in jobs.list(after=None, limit=10) if job.labels["openai_model"] == NAMELESS)
    lease = leases.claim(bad.id, "worker")
    assert lease
    leases.fail(lease, JobFailed(Code.OUT_OF_MEMORY, "It was too large."))
    finish_jobs(installation)
    output = step(installation, "train", archive, code=1)
    assert f"{NAMELESS} on tiny: {bad.id} failed: OUT_OF_MEMORY: It was too large." in output
    assert f"{TUNED}\ttiny\t" in output
    step(installation, "train", archive, "--no-watch", "--retry")
    again = read(archive, "train/*/ft%3Agpt-4.1*/tiny.json")
    assert (again["state"], again["job"] != bad.id) == ("queued", True)
    step(installation, "train", archive, "--no-watch", "--retry")
    assert read(archive, "train/*/ft%3Agpt-4.1*/tiny.json")["job"] == again["job"]


def test_changed_rows_are_not_trained_on(installation: CliInstallation, archive: Path) -> None:
    step(installation, "plan", archive, "--bases", "tiny", "--model", TUNED)
    with (archive / "data/OPENAI_API_KEY/file-train.jsonl").open("ab") as file:
        file.write(chat_line("More?", "More."))
    assert "has changed since the plan was made" in step(installation, "train", archive, code=1)
    assert not installation.services.jobs.list(after=None, limit=10)


# -- switch --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(installation: CliInstallation, archive: Path) -> Path:
    """An archive whose first model has a successor, `ADAPTER`."""
    step(installation, "plan", archive, "--bases", "tiny", "--model", TUNED)
    step(installation, "train", archive, "--no-watch")
    finish_jobs(installation)
    step(installation, "train", archive)
    return archive


def test_switch_needs_a_passed_gate(installation: CliInstallation, trained: Path) -> None:
    refused = step(installation, "switch", trained, "--model", TUNED, code=1)
    assert "GATE_NOT_PASSED" in refused
    assert "no gate was run" in refused
    for verdict in (Status.FAILED, Status.MISSING_EVIDENCE):
        gate(trained, verdict=verdict, reason="not passed: similarity")
        refused = step(installation, "switch", trained, "--model", TUNED, code=1)
        assert f"the gate's verdict is {verdict}: not passed: similarity" in refused
    assert installation.mens("aliases", "list") == installation.mens("names", "list") == ""
    assert not (trained / "switch").exists()


def test_switch_moves_alias_and_name_and_prints_what_changes(installation: CliInstallation, trained: Path) -> None:
    gate(trained)
    assert f"{TUNED} → alias support → {ADAPTER}" in step(
        installation, "switch", trained, "--model", TUNED, "--dry-run"
    )
    assert installation.mens("names", "list") == ""
    output = step(installation, "switch", trained, "--model", TUNED)
    assert f"{TUNED} → alias support → {ADAPTER} (its gate passed)" in output
    assert f"OPENAI_BASE_URL={installation.url}/v1" in output
    assert installation.mens("names", "list") == f"{TUNED}\t1\talias support\tshared"
    for noun, name in (("aliases", "support"), ("names", TUNED)):
        assert "Its gate passed, receipt" in installation.mens(noun, "history", name)
    kept = read(trained, "switch/*.json")
    assert (kept["alias"], kept["adapter"], kept["verdict"], kept["override_reason"]) == (
        "support",
        ADAPTER,
        "passed",
        "",
    )
    assert kept["receipt"] == digest_file(next(trained.glob("gate/*.json")))
    step(installation, "switch", trained, "--model", TUNED)
    assert read(trained, "switch/*.json")["alias_version"] == 1, "a repeated switch moves nothing"


def test_override_is_kept_in_the_histories(installation: CliInstallation, trained: Path) -> None:
    gate(trained, verdict=Status.FAILED, reason="not passed: similarity")
    why = ["--override-reason", "the model is gone tomorrow"]
    assert "without a passed gate: the model is gone tomorrow" in step(
        installation, "switch", trained, "--model", TUNED, *why
    )
    for noun, name in (("aliases", "support"), ("names", TUNED)):
        history = installation.mens(noun, "history", name)
        assert (
            "Without a passed gate (the gate's verdict is failed: not passed: similarity): the model is gone" in history
        )
    assert read(trained, "switch/*.json")["override_reason"] == "the model is gone tomorrow"


def test_receipt_of_other_evidence_does_not_count(installation: CliInstallation, trained: Path) -> None:
    gate(trained)
    (trained / "data/OPENAI_API_KEY/file-valid.jsonl").write_bytes(chat_line("Another?", "Another."))
    refused = step(installation, "switch", trained, "--model", TUNED, code=1)
    assert "data/OPENAI_API_KEY/file-valid.jsonl changed since the gate" in refused
    gate(trained)
    other = f"support@{'f' * 64}"
    refused = step(installation, "switch", trained, "--model", TUNED, "--adapter", other, code=1)
    assert f"the gate compared {ADAPTER}, not {other}" in refused


def test_alias_of_somebody_else_is_not_taken(installation: CliInstallation, trained: Path) -> None:
    installation.register(new_adapter("demo@1"))
    installation.mens("aliases", "set", "support", "demo@1")
    gate(trained)
    refused = step(installation, "switch", trained, "--model", TUNED, code=1)
    assert "ALIAS_TAKEN" in refused
    assert "points to demo@1" in refused
    assert "→ alias helpdesk →" in step(installation, "switch", trained, "--model", TUNED, "--alias", "helpdesk")
    assert "→ alias support →" in step(installation, "switch", trained, "--model", TUNED, "--alias", "support")


def test_models_with_one_suffix_get_an_alias_each() -> None:
    second = "ft:gpt-4o-2024-08-06:acme:support:ZzYyXx99"
    assert aliases_for([TUNED, second, NAMELESS]) == {
        TUNED: "support-9xabcdef",
        second: "support-zzyyxx99",
        NAMELESS: "bcdefg12",
    }


@pytest.mark.parametrize("name", ["plan", "switch"])
def test_unknown_model_is_refused(installation: CliInstallation, archive: Path, name: str) -> None:
    assert "the archive has no tuned model ft:x" in step(installation, name, archive, "--model", "ft:x", code=1)


@pytest.mark.parametrize("name", ["plan", "switch"])
def test_archive_without_a_tuned_model_is_said(
    installation: CliInstallation, archive: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once both ended with exit code 0 and nothing done, and `train` then said to plan first.
    monkeypatch.setattr("openai_migration.commands.successors.tuned_models", lambda _: iter(()))
    said = step(installation, name, archive, code=1)
    assert "has no tuned model" in said
    assert "mens migrate openai import" in said


# -- the whole way -------------------------------------------------------------------------------------------------------


async def answering_replica(scope: Any, receive: Any, send: Any) -> None:
    """Answers chats as the fake OpenAI's tuned model does, but for the name in the answer."""
    if scope["type"] != "http":
        return
    content = b""
    if scope["method"] == "POST":
        body = json.loads((await receive())["body"])
        message = {"role": "assistant", "content": f"answer of {TUNED}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        content = json.dumps(answer | {"usage": usage}, separators=(",", ":")).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": content})


def test_every_step_takes_up_what_the_one_before_has_left(
    installation: CliInstallation, archive: Path, openai: ServedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(installation, "record", archive, "--model", TUNED, "--yes")
    monkeypatch.delenv("OPENAI_API_KEY")
    openai.fake.requests.clear()
    for url in serve(answering_replica):
        installation.services.settings.serving_urls[:] = [url]
        step(installation, "plan", archive, "--bases", "tiny", "--model", TUNED)
        step(installation, "train", archive, "--no-watch")
        finish_jobs(installation)
        step(installation, "train", archive)
        assert "GATE_NOT_PASSED" in step(installation, "switch", archive, "--model", TUNED, code=1)
        step(installation, "gate", archive, "--margin", "0.3")
        step(installation, "switch", archive, "--model", TUNED)
        body = {"model": TUNED, "messages": [{"role": "user", "content": "Where is it?"}]}
        answer = httpx.post(
            f"{installation.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {os.environ['MENS_API_KEY']}"},
            timeout=10,
        )
        assert (answer.json()["model"], answer.headers["x-mens-adapter"]) == (TUNED, ADAPTER)
        assert "train, gate, switch" in step(installation, "report", archive)
        assert ADAPTER in (archive / "report.html").read_text()
    assert not openai.fake.requests
