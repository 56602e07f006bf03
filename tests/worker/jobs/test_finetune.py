"""The fine-tune job with the real trainer, from claim to success."""

from __future__ import annotations

import csv
import errno
import json
import shutil
from pathlib import Path

import pytest

import worker.jobs.finetune
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, verify_adapter
from shared.contract.plan import ExecutionPlan
from shared.database.deletions import Deletions, DeletionStep
from shared.database.job_states import JobState
from shared.database.names.aliases import Aliases
from shared.errors import Code, JobFailed, MensError
from shared.hashing import digest_file
from shared.model_card.self_evaluation import KEY, RowSource, SelfEvaluation
from shared.worker_registry import WorkerMachine
from tests.support.copying_storage import copied_file
from tests.support.training_runs import PauseAfter
from worker.child_runtime import StopRequested
from worker.jobs.certificates import CertificateLimits
from worker.run_folder import list_checkpoints, read_json

ROOT = Path(__file__).parents[3]
RUN = {"exec": {"epochs": 2, "checkpoint_every": 2}}


class Crash(BaseException):
    """Simulates the death of the worker's process."""


def snapshot(folder):
    return {path.relative_to(folder): digest_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def adapters_of(installation, job_id):
    return sorted(
        (one for one in all_adapters(installation) if one.job_id == job_id), key=lambda one: (one.final, one.step)
    )


def all_adapters(installation):
    from shared.database.adapters import Adapter
    from shared.database.tables.adapters import AdapterRow

    with installation.database.read() as session:
        return [Adapter.model_validate(row) for row in session.query(AdapterRow)]


def assert_stored(installation, adapter):
    folder = installation.storage.folder("adapters", adapter.digest)
    verify_adapter(folder, parse_manifest((folder / MANIFEST_NAME).read_bytes(), adapter.digest))


@pytest.fixture
def crash_before_finish(monkeypatch):
    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(worker.jobs.finetune, "finish", crash)
        yield patch


def test_second_attempt_publishes_the_run_of_a_crashed_first(installation, tmp_path, monkeypatch, crash_before_finish):
    """The first worker trains and dies before it can report that; the second one finds the finished run."""
    job, run = installation.submit_finetune(tmp_path / "data", **RUN)
    with pytest.raises(Crash):
        installation.worker.run_job(job.id)
    first = installation.settings.runs_dir / job.id / "attempt-0001"
    assert installation.jobs.get(job.id).state is JobState.RUNNING
    assert all_adapters(installation) == []
    left = snapshot(first)
    crash_before_finish.undo()

    installation.expire_lease(job.id)
    monkeypatch.setattr(worker.jobs.finetune, "ChildProcess", lambda *_, **__: pytest.fail("the trainer ran again"))
    installation.second_worker().run_job(job.id)

    done = installation.jobs.get(job.id)
    assert (done.state, done.attempt, done.error) == (JobState.SUCCEEDED, 2, None)
    assert [path.name for path in first.parent.iterdir()] == ["attempt-0001"]
    assert snapshot(first) == {name: digest for name, digest in left.items() if name.parts[0] != "checkpoints"}
    assert_result(installation, done, run)
    assert_metrics_file(installation, done)


@pytest.mark.parametrize(
    "machine",
    [
        WorkerMachine(device="cpu", host_bytes=1 << 20),
        WorkerMachine(device="cuda", devices=1, memory_bytes=1 << 20, free_bytes=1 << 20),
    ],
    ids=["cpu", "cuda"],
)
def test_a_worker_refuses_what_its_own_memory_cannot_hold(installation, tmp_path, monkeypatch, machine):
    """It may have less than the least of those that lived when the job was created, and then there may have been none."""
    job, _ = installation.submit_finetune(tmp_path / "data", **RUN)
    monkeypatch.setattr(worker.jobs.finetune, "describe_machine", lambda *_: machine)
    monkeypatch.setattr(worker.jobs.finetune, "ChildProcess", lambda *_, **__: pytest.fail("the trainer was started"))
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert (done.state, done.error["code"]) == (JobState.FAILED, Code.MEMORY_DOES_NOT_FIT)


def test_a_worker_gives_back_a_job_when_its_gpu_cannot_be_used(installation, tmp_path, monkeypatch):
    job, _ = installation.submit_finetune(tmp_path / "data", **RUN)
    machine = WorkerMachine(device="cpu", host_bytes=1 << 40, gpu_fault="the H200 cannot be used: its driver is old.")
    monkeypatch.setattr(worker.jobs.finetune, "describe_machine", lambda *_: machine)
    monkeypatch.setattr(worker.jobs.finetune, "ChildProcess", lambda *_, **__: pytest.fail("the trainer was started"))
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.QUEUED, None)
    error = installation.jobs.events(job.id)[-1].data["error"]
    assert (error["code"], error["message"], error["retryable"]) == (Code.GPU_UNUSABLE, machine.gpu_fault, True)


def assert_result(installation, job, run):
    *checkpoints, final = adapters_of(installation, job.id)
    assert [one.step for one in checkpoints] == [2, 3, 4]
    assert (final.step, final.final, final.published) == (6, True, False)
    assert job.result["adapter_id"] == final.id == f"tiny@{final.digest}"
    assert job.result["adapter_path"] == f"/v1/adapters/{final.id}"
    assert job.result["adapters"] == [one.id for one in (*checkpoints, final)]
    assert (job.result["optimizer_steps"], job.result["planned_steps"]) == (6, 6)
    assert job.result["trained_tokens"] > 0
    assert final.metrics["step"] == 6
    assert final.metrics[KEY] == job.result[KEY]
    evaluation = SelfEvaluation.model_validate(job.result[KEY])
    assert (evaluation.source, evaluation.rows_available) == (RowSource.TRAINING, 6)
    assert len(evaluation.sample_answers) == 6
    events = installation.jobs.events(job.id)
    assert "It runs code" not in "".join(str(event.data) for event in events)  # a row's text
    assert [one.metrics["step"] for one in checkpoints] == [2, 3, 4]
    times = [job.result["checkpoint_times"][one.id] for one in checkpoints]
    assert times == sorted(times)
    assert job.result["last_train_loss"] == final.metrics["train_loss"]
    for adapter in (*checkpoints, final):
        assert not adapter.published
        assert adapter.manifest["contract_digest"] == run.plan.contract_digest
        assert_stored(installation, adapter)


def assert_metrics_file(installation, job):
    (file_id,) = job.result["result_files"]
    file = installation.files.get(file_id)
    assert (file.filename, file.purpose) == (f"step_metrics-{job.id}.csv", "fine-tune-results")
    path = installation.storage.blob_path(file.sha256)
    assert path.stat().st_size == file.bytes
    with path.open(newline="") as lines:
        assert [row["step"] for row in csv.DictReader(lines)] == ["1", "2", "3", "4", "5", "6"]


def leave_checkpoint(installation, tiny, job, run):
    """The run folder of a first attempt that has ended after three of six steps, with its worker."""
    assert installation.leases.claim(job.id, "dead")
    first = installation.settings.runs_dir / job.id / "attempt-0001"
    with pytest.raises(StopRequested):
        tiny.train(run, first, stop=PauseAfter(3))
    return first


def test_second_attempt_resumes_from_the_first_ones_checkpoint(installation, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MENS_SAMPLE_ANSWERS", "0")
    monkeypatch.setattr(FolderStorage, "local_file", copied_file)  # the paths of its data files differ from the first's
    job, run = installation.submit_finetune(tmp_path / "data", **RUN)
    first = leave_checkpoint(installation, tiny, job, run)
    left = {name: digest for name, digest in snapshot(first).items() if name.parts[0] != "checkpoints"}
    installation.expire_lease(job.id)
    installation.worker.run_job(job.id)

    done = installation.jobs.get(job.id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.error
    assert "Training resumed from the checkpoint of step 3: 6 steps on cpu." in installation.messages(job.id)
    assert snapshot(first) == left
    again = ExecutionPlan.model_validate_json(run.plan.model_dump_json())
    whole = tiny.train(run.model_copy(update={"plan": again}), tmp_path / "whole")
    final = adapters_of(installation, job.id)[-1]
    stored = installation.storage.folder("adapters", final.digest)
    assert digest_file(stored / WEIGHTS_NAME) == digest_file(whole / "adapter" / WEIGHTS_NAME)
    assert final.id == read_json(whole / "run_summary.json")["adapter_id"]


def as_earlier_release_stored(plan):
    """The plan without the fields that came later, and with a claim that was accepted then."""
    earlier = json.loads((ROOT / "tests/shared/golden/plan-2026-11.json").read_text())["plan"]
    stored = {name: value for name, value in plan.model_dump(mode="json").items() if name in earlier}
    contract = {}
    for name, known in earlier["contract"].items():
        section = stored["contract"][name]
        contract[name] = {field: section[field] for field in known} if isinstance(known, dict) else section
    return stored | {"contract": contract | {"collateral_damage_verified": True}}


def test_a_job_that_an_earlier_release_has_stored_and_begun_is_resumed(installation, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MENS_SAMPLE_ANSWERS", "0")
    job, run = installation.submit_finetune(tmp_path / "data", as_stored=as_earlier_release_stored, **RUN)
    assert run.plan.model_fields_set < ExecutionPlan.model_fields.keys()
    leave_checkpoint(installation, tiny, job, run)
    installation.expire_lease(job.id)
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2), done.error
    assert "Training resumed from the checkpoint of step 3: 6 steps on cpu." in installation.messages(job.id)


def test_coded_preflight_error_reaches_the_job(installation, tmp_path):
    rows = [{"prompt": "Q", "response": "A"}, {"prompt": "Q"}]
    job, _ = installation.submit_finetune(tmp_path / "data", rows=rows)
    installation.worker.run_job(job.id)
    failed = installation.jobs.get(job.id)
    assert (failed.state, failed.error["code"]) == (JobState.FAILED, Code.DATASET_LINE_INVALID)
    assert failed.error["details"]["errors"][0]["line"] == 2


# -- before the trainer -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_trainer(monkeypatch):
    monkeypatch.setattr(worker.jobs.finetune, "ChildProcess", lambda *_, **__: pytest.fail("the trainer was started"))


def failed_with(installation, job):
    installation.worker.run_job(job.id)
    failed = installation.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    return failed.error["code"]


def test_what_is_not_learnt_as_it_is_written_is_an_event(installation, tmp_path, monkeypatch):
    class Trainer(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Trainer

    monkeypatch.setattr(worker.jobs.finetune, "ChildProcess", stop)
    rows = [{"prompt": "Q", "response": "A", "source": "web"}] * 30 + [{"prompt": "Q " * 60, "response": "A"}]
    job, _ = installation.submit_finetune(tmp_path / "data", rows=rows, exec={"seq_len": 32})
    installation.worker.run_job(job.id)
    events = installation.jobs.events(job.id)
    warnings = [event.message for event in events if event.level == "warn"]
    assert "Keys of rows that are not used: source (30)." in warnings
    assert any("1 of 31 rows are longer than exec.seq_len (32 tokens)" in warning for warning in warnings)
    assert any("every row is trained on" in event.message for event in events)


def test_missing_training_file(installation, tmp_path, no_trainer):
    job, run = installation.submit_finetune(tmp_path / "data")
    installation.storage.delete_blob(run.plan.train.sha256)
    assert failed_with(installation, job) == Code.STORAGE_OBJECT_MISSING


def test_changed_training_file(installation, tmp_path, no_trainer):
    job, run = installation.submit_finetune(tmp_path / "data")
    installation.storage.blob_path(run.plan.train.sha256).write_text("other")
    assert failed_with(installation, job) == Code.STORAGE_OBJECT_MISSING


def test_changed_base(installation, tiny, tmp_path, no_trainer):
    base = shutil.copytree(tiny.base, tmp_path / "base")
    (base / "config.json").write_text("{}")
    from shared.base_models.catalog import Catalog, LocalSource, save_catalog

    entry = tiny.entry.model_copy(update={"source": LocalSource(path=str(base))})
    save_catalog(installation.settings.catalog_path, Catalog(bases=[entry]))
    job, _ = installation.submit_finetune(tmp_path / "data")
    assert failed_with(installation, job) == Code.BASE_DIGEST_MISMATCH


def test_cancel_before_the_trainer_starts(installation, tmp_path, no_trainer, monkeypatch):
    job, _ = installation.submit_finetune(tmp_path / "data")
    locate = worker.jobs.finetune.locate_inputs

    def cancel_meanwhile(attempt, plan):
        installation.jobs.cancel(job.id)
        attempt.keeper.requested = "cancel"
        return locate(attempt, plan)

    monkeypatch.setattr(worker.jobs.finetune, "locate_inputs", cancel_meanwhile)
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.CANCELLED


# -- publishing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished_attempt(installation, finished, tmp_path):
    """A job whose training is done already in attempt 1."""

    def prepare(**artifact):
        job, _ = installation.submit_finetune(tmp_path / "data", artifact=artifact)
        shutil.copytree(finished.run_dir, installation.settings.runs_dir / job.id / "attempt-0000")
        return job

    return prepare


def test_published_adapter_gets_its_certificates_and_its_alias(installation, finished_attempt, monkeypatch, no_trainer):
    calls = []

    def certify(urls, key, probes, **_):
        calls.append((urls, probes.adapter_id, len(probes.probes), probes.limits))
        return {"replica": {"effect_rms_nats": 1.0}}

    monkeypatch.setattr(worker.jobs.finetune, "certify", certify)
    job = finished_attempt(publish=True, alias="support")
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    adapters = adapters_of(installation, job.id)
    assert all(adapter.published for adapter in adapters)
    assert adapters[-1].certificates == {"replica": {"effect_rms_nats": 1.0}}
    assert calls == [([], adapters[-1].id, 2, CertificateLimits(installation.settings.effect_floor))]
    assert [(alias.name, alias.adapter_id) for alias in Aliases(installation.database).all()] == [
        ("support", adapters[-1].id)
    ]


def test_failed_certificates_quarantine_the_adapter(installation, finished_attempt, monkeypatch, no_trainer):
    failed = {"http://replica": {"passed": False, "failed": ["effect"], "effect_rms_nats": 0.0}}

    def certify(*_, **__):
        raise JobFailed(Code.ADAPTER_NO_EFFECT, "It changes nothing.", details={"certificates": failed})

    monkeypatch.setattr(worker.jobs.finetune, "certify", certify)
    job = finished_attempt(publish=True, alias="support")
    assert failed_with(installation, job) == Code.ADAPTER_NO_EFFECT
    (adapter,) = adapters_of(installation, job.id)
    assert (adapter.state, adapter.final, adapter.certificates) == ("quarantined", True, failed)
    assert installation.jobs.get(job.id).error["details"]["certificates"] == failed
    assert Aliases(installation.database).all() == []


def test_unpublished_adapter_moves_no_alias(installation, finished_attempt, no_trainer):
    job = finished_attempt(publish=False, alias="support")
    installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.SUCCEEDED
    assert Aliases(installation.database).all() == []


def test_failed_publishing_registers_nothing(installation, finished_attempt, no_trainer):
    job = finished_attempt(publish=True)
    assert failed_with(installation, job) == Code.SERVING_UNAVAILABLE
    assert all_adapters(installation) == []
    run_dir = installation.settings.runs_dir / job.id / "attempt-0000"
    assert list_checkpoints(run_dir), "the run is kept, so that a new attempt need not train again"


@pytest.mark.parametrize("full_at", [1, 3, 6, -1], ids=["first file", "a manifest", "a later file", "result file"])
def test_full_storage_publishes_nothing_and_the_next_attempt_continues(
    installation, finished_attempt, monkeypatch, no_trainer, full_at
):
    """Whatever does not fit: no manifest without its files, no record, and no second training."""
    job, storage, places = finished_attempt(publish=False), installation.storage, []
    real = FolderStorage._copy_in

    def copy_in(self, source, target):
        places.append(target)
        if len(places) == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "_copy_in", copy_in)
        if full_at < 0:
            patch.setattr(FolderStorage, "put_file", lambda *_: Path("/dev/full").write_text("x"))
        installation.worker.run_job(job.id)
    assert installation.jobs.get(job.id).state is JobState.QUEUED
    assert "STORAGE_FULL" in installation.messages(job.id)[-1] or "no space left" in installation.messages(job.id)[-1]
    assert all_adapters(installation) == []
    for digest in storage.digests("adapters"):
        if storage.holds("adapters", digest, MANIFEST_NAME):
            folder = storage.folder("adapters", digest)
            verify_adapter(folder, parse_manifest((folder / MANIFEST_NAME).read_bytes(), digest))
    installation.skip_backoff(job.id)
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert (done.state, done.attempt, done.error) == (JobState.SUCCEEDED, 2, None)
    for adapter in adapters_of(installation, job.id):
        assert_stored(installation, adapter)
    assert list(storage.incoming.iterdir()) == []


def test_adapter_pending_deletion_is_kept_for_job_that_makes_it_again(
    installation, finished_attempt, monkeypatch, no_trainer
):
    first = finished_attempt(publish=False)
    installation.worker.run_job(first.id)
    deletions = Deletions(installation.database)
    for adapter in adapters_of(installation, first.id):
        deletions.begin(adapter.id)
    found = []

    def certify(*_, **__):
        found.extend(deletions.finish(deletion, found.clear) for deletion in deletions.pending())
        return {"replica": {"effect_rms_nats": 1.0}}

    monkeypatch.setattr(worker.jobs.finetune, "certify", certify)
    again = finished_attempt(publish=True)
    installation.worker.run_job(again.id)
    assert set(found) == {DeletionStep.KEPT}
    adapters = adapters_of(installation, again.id)
    assert len(adapters) == len(found)
    for adapter in adapters:
        assert adapter.state == "published"
        assert_stored(installation, adapter)


def test_a_job_continues_from_a_stored_adapter(installation, tmp_path):
    """Its parent is fetched by digest, and stays until the job has ended."""
    first, _ = installation.submit_finetune(tmp_path / "first", **RUN)
    installation.worker.run_job(first.id)
    *_, parent = adapters_of(installation, first.id)
    folder = installation.storage.folder("adapters", parent.digest)
    job, _ = installation.submit_finetune(tmp_path / "second", parent=folder, **RUN)
    with pytest.raises(MensError) as refused:
        Deletions(installation.database).begin(parent.id)
    assert (refused.value.code, refused.value.details["jobs"]) == (Code.MODEL_IN_USE, [job.id])
    installation.worker.run_job(job.id)
    done = installation.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.SUCCEEDED, None)
    adapters = adapters_of(installation, job.id)
    named = {"id": parent.id, "digest": parent.digest, "step": parent.step}
    assert [one.manifest["parent"] for one in adapters] == [named] * len(adapters)
    assert done.result["last_train_loss"] < installation.jobs.get(first.id).result["last_train_loss"]
    run_dir = installation.settings.runs_dir / job.id / "attempt-0001"
    assert read_json(run_dir / "plan.json")["inputs"]["parent"] == str(run_dir / "parent")
    Deletions(installation.database).begin(parent.id)
