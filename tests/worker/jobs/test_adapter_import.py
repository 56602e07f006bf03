"""The import job, from claim to a registered adapter."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

import worker.jobs.finetune
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, parse_manifest
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V3_NAME
from shared.artifacts.signatures import SIGNATURE_NAME, make_key, verify_signature
from shared.contract.contracts import ImportContract
from shared.contract.plan import ImportPlan, PlannedBase
from shared.database.adapters import Adapters
from shared.database.job_states import JobState
from shared.database.names.aliases import Aliases
from shared.database.records import Kind
from shared.errors import Code, NotFound
from shared.tokenization.tokenizer import Tokenizer
from tests.support.gate_rows import govern
from tests.support.original_adapter import make_original
from tests.support.peft_folder import make_patterned
from worker.probe_chats import encode_chats


@pytest.fixture
def imported(installation, tiny, tmp_path):
    """Queues an import of an adapter in the original's layout."""

    def queue(publish=False, alias=None, **changes):
        config = json.loads((tiny.base / "config.json").read_text())
        made = make_original(tiny.base, "F", sizes=(config["vocab_size"], config["hidden_size"]))
        made.changes = changes
        folder: Path = made.write(tmp_path / "original")
        plan = ImportPlan(
            contract=ImportContract(
                weights_file="file-w",
                sidecar_file="file-s",
                model=tiny.entry.name,
                name="old",
                publish=publish,
                alias=alias,
            ),
            base=PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests),
            weights_sha256=installation.storage.put_file(folder / ORIGINAL_WEIGHTS),
            sidecar_sha256=installation.storage.put_file(folder / V3_NAME),
        )
        return installation.submit(Kind.IMPORT, plan.model_dump(mode="json")), plan

    return queue


def test_import_from_claim_to_success(installation, imported):
    job, plan = imported(base_model="Qwen/Qwen3")
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    adapter = Adapters(installation.database).get(done.result["adapter_id"])
    raw = (installation.storage.folder("adapters", adapter.digest) / MANIFEST_NAME).read_bytes()
    manifest = parse_manifest(raw, adapter.digest)
    assert (manifest.name, manifest.step, manifest.contract_digest) == ("old", 0, plan.content_digest)
    assert (adapter.final, adapter.state) == (True, "stored")
    assert done.result["notes"] == [event for event in installation.messages(job.id) if event in done.result["notes"]]
    assert any("Qwen/Qwen3" in note for note in done.result["notes"])


def test_what_is_refused_fails_the_job_with_its_code(installation, imported):
    job, _ = imported(version=7)
    installation.worker.run_job(job.id)
    failed = installation.jobs.get(job.id)
    assert (failed.state, failed.error["code"]) == (JobState.FAILED, Code.ADAPTER_IMPORT_FORMAT)
    assert not (installation.storage.root / "adapters").exists()


def test_an_upload_that_has_changed_is_not_imported(installation, imported):
    job, plan = imported()
    path = installation.storage.blob_path(plan.weights_sha256)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).error["code"] == Code.STORAGE_OBJECT_MISSING


def test_an_import_is_measured_with_probe_chats_before_it_is_published(installation, imported, tiny, monkeypatch):
    measured = []

    def certify(urls, key, probes, **_):
        measured.append(probes)
        return {"replica": {"passed": True}}

    monkeypatch.setattr(worker.jobs.finetune, "certify", certify)
    job, _ = imported(publish=True)
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    (probes,) = measured
    assert probes.adapter_id == done.result["adapter_id"]
    assert len(probes.probes) == len(encode_chats(Tokenizer.load(tiny.base)).chats)
    assert all(probe["positions"] == list(range(1, len(probe["token_ids"]))) for probe in probes.probes)
    # No training has seen them: the base shift stays unknown.
    assert probes.trained is None
    assert Adapters(installation.database).get(probes.adapter_id).state == "published"


def test_an_import_for_an_alias_under_a_policy_is_judged(installation, imported, monkeypatch):
    monkeypatch.setattr(worker.jobs.finetune, "certify", lambda *_, **__: {"replica": {"passed": True}})
    govern(installation.database, "alias:prod")  # by its training, of which an import has none
    job, _ = imported(publish=True, alias="prod")
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    assert Adapters(installation.database).get(done.result["adapter_id"]).state == "published"
    [row] = done.result["receipt"]["gates"]
    assert (row["name"], row["status"]) == ("truncation", "missing_evidence")
    assert (done.result["alias"]["moved"], done.result["alias"]["error"]["code"]) == (False, "GATE_FAILED")
    with pytest.raises(NotFound):
        Aliases(installation.database).get("prod")


def test_what_a_worker_with_a_key_stores_is_signed(installation, imported, tmp_path):
    public = make_key(tmp_path / "key.pem")
    worker = replace(
        installation.worker,
        settings=installation.settings.model_copy(update={"signing_key": tmp_path / "key.pem"}),
    )
    job, _ = imported()
    worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    digest = done.result["adapter_id"].partition("@")[2]
    raw = (installation.storage.folder("adapters", digest) / SIGNATURE_NAME).read_bytes()
    assert verify_signature(raw, digest, {public}).manifest_digest == digest


def test_a_key_that_cannot_be_read_fails_the_job_and_stores_nothing(installation, imported, tmp_path):
    worker = replace(
        installation.worker,
        settings=installation.settings.model_copy(update={"signing_key": tmp_path / "gone.pem"}),
    )
    job, _ = imported()
    worker.run_job(job.id)
    assert installation.jobs.get(job.id).error["code"] == Code.SETTINGS_INVALID
    assert not (installation.storage.root / "adapters").exists()


@pytest.fixture
def peft_import(installation, tiny, tmp_path):
    """Queues an import of a PEFT folder."""

    def queue(template=None, **options):
        made = make_patterned(tiny.base)
        made.options |= options
        folder = made.write(tmp_path / "peft")
        digest = None
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
            digest = installation.storage.put_file(folder / "chat_template.jinja")
        plan = ImportPlan(
            contract=ImportContract(
                weights_file="w", sidecar_file="s", template_file="t", model=tiny.entry.name, name="peft", publish=False
            ),
            base=PlannedBase(name=tiny.entry.name, digests=tiny.entry.digests),
            weights_sha256=installation.storage.put_file(folder / WEIGHTS_NAME),
            sidecar_sha256=installation.storage.put_file(folder / CONFIG_NAME),
            template_sha256=digest,
        )
        job = installation.submit(Kind.IMPORT, plan.model_dump(mode="json"))
        installation.worker.run_job(job.id)
        return installation.jobs.get(job.id)

    return queue


def test_a_peft_folder_is_imported_with_its_notes(installation, peft_import):
    done = peft_import(base_model_name_or_path="Qwen/Qwen3-4B")
    assert done.state is JobState.SUCCEEDED, done.error
    manifest = Adapters(installation.database).get(done.result["adapter_id"]).manifest
    assert (manifest["rank"], manifest["alpha"], manifest["adapter_method"]) == (5, 5, "lora")
    assert any("Qwen/Qwen3-4B" in note for note in done.result["notes"])


def test_an_option_that_vllm_ignores_fails_the_job_with_its_name(peft_import):
    error = peft_import(use_dora=True).error
    assert (error["code"], error["param"]) == (Code.ADAPTER_NOT_SERVABLE, "use_dora")


def test_broken_weights_fail_the_job_with_the_name_of_the_field(installation, peft_import, monkeypatch):
    written = installation.storage.put_file

    def put_file(path):
        if path.name == WEIGHTS_NAME:
            path.write_bytes(path.read_bytes()[:-1])
        return written(path)

    monkeypatch.setattr(installation.storage, "put_file", put_file)
    error = peft_import().error
    assert (error["code"], error["param"]) == (Code.SAFETENSORS_INVALID, "weights_file")
    assert error["message"].startswith("weights_file is not a sound safetensors file")


def test_storage_may_be_a_relative_folder(installation, imported, monkeypatch):
    """A file of the field's name links to the weights in the adapter's folder, not in the worker's working directory."""
    job, _ = imported()
    monkeypatch.chdir(installation.storage.root.parent)
    storage = FolderStorage(Path(installation.storage.root.name))
    replace(installation.worker, storage=storage).run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error


def test_a_template_that_makes_other_tokens_fails_the_job(peft_import):
    error = peft_import("{% for message in messages %}[{{ message['content'] }}]{% endfor %}").error
    assert (error["code"], error["param"]) == (Code.ADAPTER_TEMPLATE_MISMATCH, "template_file")


def test_template_that_exceeds_the_limits_ends_in_its_own_process(peft_import):
    doubling = "{% set n = namespace(t='x') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}"
    error = peft_import(doubling).error
    assert error["code"] in (Code.TEMPLATE_UNSUPPORTED, Code.ADAPTER_TEMPLATE_MISMATCH)
    assert error["param"] == "template_file"


def test_template_that_loops_is_ended(peft_import, monkeypatch):
    monkeypatch.setattr("worker.jobs.adapter_import.TEMPLATE_PROGRAM", "tests.support.short_template_check")
    started = time.monotonic()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% if i < 0 %}x{% endif %}{% endfor %}{% endfor %}"
    error = peft_import(loop).error
    assert error["param"] == "template_file"
    assert time.monotonic() - started < 60
