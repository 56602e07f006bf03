"""The fine-tune job with the real engine, from claim to success."""

from __future__ import annotations

import csv
import shutil

import pytest

import worker.finetune
from shared.aliases import Aliases
from shared.deletion import Deletions, Standing
from shared.digest import digest_file
from shared.errors import Code, JobFailed
from shared.jobstate import State
from shared.manifest import MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, verify_adapter
from shared.planner import ExecutionPlan
from worker.certificates import Limits
from worker.process import StopRequested
from worker.rundir import list_checkpoints, read_json

RUN = {"exec": {"epochs": 2, "checkpoint_every": 2}}


class Crash(BaseException):
    """The worker's process goes away, as far as this test's process can play that."""


def snapshot(folder):
    return {path.relative_to(folder): digest_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def adapters_of(shop, job_id):
    return sorted((one for one in all_adapters(shop) if one.job_id == job_id), key=lambda one: (one.final, one.step))


def all_adapters(shop):
    from shared.registry import Adapter
    from shared.tables import AdapterRow

    with shop.database.read() as session:
        return [Adapter.model_validate(row) for row in session.query(AdapterRow)]


def assert_stored(shop, adapter):
    folder = shop.storage.folder("adapters", adapter.digest)
    verify_adapter(folder, parse_manifest((folder / MANIFEST_NAME).read_bytes(), adapter.digest))


@pytest.fixture
def crash_before_finish(monkeypatch):
    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(worker.finetune, "finish", crash)
        yield patch


def test_a_whole_job_and_its_second_attempt(shop, tmp_path, monkeypatch, crash_before_finish):
    """The first worker trains and goes away before it can say so; the second one finds the finished run."""
    job, run = shop.submit_finetune(tmp_path / "data", **RUN)
    with pytest.raises(Crash):
        shop.worker.run_job(job.id)
    first = shop.settings.runs_dir / job.id / "attempt-0001"
    assert shop.ledger.get(job.id).state is State.RUNNING
    assert all_adapters(shop) == []
    left = snapshot(first)
    crash_before_finish.undo()

    shop.expire_lease(job.id)
    monkeypatch.setattr(worker.finetune, "Engine", lambda *_, **__: pytest.fail("the engine ran again"))
    shop.second_worker().run_job(job.id)

    done = shop.ledger.get(job.id)
    assert (done.state, done.attempt, done.error) == (State.SUCCEEDED, 2, None)
    assert [path.name for path in first.parent.iterdir()] == ["attempt-0001"]
    assert snapshot(first) == {name: digest for name, digest in left.items() if name.parts[0] != "checkpoints"}
    assert_result(shop, done, run)
    assert_metrics_file(shop, done)


def assert_result(shop, job, run):
    *checkpoints, final = adapters_of(shop, job.id)
    assert [one.step for one in checkpoints] == [2, 4]
    assert (final.step, final.final, final.published) == (6, True, False)
    assert job.result["adapter_id"] == final.id == f"tiny@{final.digest}"
    assert job.result["adapters"] == [one.id for one in (*checkpoints, final)]
    assert job.result["optimizer_steps"] == 6
    assert job.result["trained_tokens"] > 0
    assert final.metrics["step"] == 6
    assert [one.metrics["step"] for one in checkpoints] == [2, 4]
    assert job.result["last_train_loss"] == final.metrics["train_loss"]
    for adapter in (*checkpoints, final):
        assert not adapter.published
        assert adapter.manifest["contract_digest"] == run.plan.contract_digest
        assert_stored(shop, adapter)


def assert_metrics_file(shop, job):
    (file_id,) = job.result["result_files"]
    file = shop.registry.file(file_id)
    assert (file.filename, file.purpose) == (f"step_metrics-{job.id}.csv", "fine-tune-results")
    path = shop.storage.open_blob(file.sha256)
    assert path.stat().st_size == file.bytes
    with path.open(newline="") as lines:
        assert [row["step"] for row in csv.DictReader(lines)] == ["1", "2", "3", "4", "5", "6"]


class PauseAt:
    cancel_requested = False

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def pause_requested(self) -> bool:
        self._left -= 1
        return self._left <= 0


def test_second_attempt_goes_on_from_the_checkpoint_of_the_first(shop, lab, tmp_path):
    job, run = shop.submit_finetune(tmp_path / "data", **RUN)
    assert shop.leases.claim(job.id, "gone")
    first = shop.settings.runs_dir / job.id / "attempt-0001"
    with pytest.raises(StopRequested):
        lab.train(run, first, stop=PauseAt(3))
    left = {name: digest for name, digest in snapshot(first).items() if name.parts[0] != "checkpoints"}
    shop.expire_lease(job.id)
    shop.worker.run_job(job.id)

    done = shop.ledger.get(job.id)
    assert (done.state, done.attempt) == (State.SUCCEEDED, 2), done.error
    assert "Training resumed from the checkpoint of step 3: 6 steps on cpu." in shop.messages(job.id)
    assert snapshot(first) == left
    again = ExecutionPlan.model_validate_json(run.plan.model_dump_json())
    whole = lab.train(run.model_copy(update={"plan": again}), tmp_path / "whole")
    final = adapters_of(shop, job.id)[-1]
    stored = shop.storage.folder("adapters", final.digest)
    assert digest_file(stored / WEIGHTS_NAME) == digest_file(whole / "adapter" / WEIGHTS_NAME)
    assert final.id == read_json(whole / "run_summary.json")["adapter_id"]


def test_coded_error_of_the_engine_reaches_the_job(shop, tmp_path):
    rows = [{"prompt": "Q", "response": "A"}, {"prompt": "Q"}]
    job, _ = shop.submit_finetune(tmp_path / "data", rows=rows)
    shop.worker.run_job(job.id)
    failed = shop.ledger.get(job.id)
    assert (failed.state, failed.error["code"]) == (State.FAILED, Code.DATASET_LINE_INVALID)
    assert failed.error["details"]["errors"][0]["line"] == 2


# -- before the engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr(worker.finetune, "Engine", lambda *_, **__: pytest.fail("the engine was started"))


def failed_with(shop, job):
    shop.worker.run_job(job.id)
    failed = shop.ledger.get(job.id)
    assert failed.state is State.FAILED
    return failed.error["code"]


def test_missing_training_file(shop, tmp_path, no_engine):
    job, run = shop.submit_finetune(tmp_path / "data")
    shop.storage.delete_blob(run.plan.train.sha256)
    assert failed_with(shop, job) == Code.STORAGE_OBJECT_MISSING


def test_training_file_that_was_changed(shop, tmp_path, no_engine):
    job, run = shop.submit_finetune(tmp_path / "data")
    shop.storage.blob_path(run.plan.train.sha256).write_text("other")
    assert failed_with(shop, job) == Code.STORAGE_OBJECT_MISSING


def test_base_that_was_changed(shop, lab, tmp_path, no_engine):
    base = shutil.copytree(lab.base, tmp_path / "base")
    (base / "config.json").write_text("{}")
    from shared.catalog import Catalog, LocalSource, save_catalog

    entry = lab.entry.model_copy(update={"source": LocalSource(path=str(base))})
    save_catalog(shop.settings.catalog_path, Catalog(bases=[entry]))
    job, _ = shop.submit_finetune(tmp_path / "data")
    assert failed_with(shop, job) == Code.BASE_DIGEST_MISMATCH


def test_cancel_before_the_engine_starts(shop, tmp_path, no_engine, monkeypatch):
    job, _ = shop.submit_finetune(tmp_path / "data")
    locate = worker.finetune.locate_inputs

    def cancel_meanwhile(attempt, plan):
        shop.ledger.cancel(job.id)
        attempt.keeper.requested = "cancel"
        return locate(attempt, plan)

    monkeypatch.setattr(worker.finetune, "locate_inputs", cancel_meanwhile)
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.CANCELLED


# -- publishing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished_attempt(shop, finished, tmp_path):
    """A job whose training is done already in attempt 1."""

    def prepare(**artifact):
        job, _ = shop.submit_finetune(tmp_path / "data", artifact=artifact)
        shutil.copytree(finished.run_dir, shop.settings.runs_dir / job.id / "attempt-0000")
        return job

    return prepare


def test_published_adapter_gets_its_certificates_and_its_alias(shop, finished_attempt, monkeypatch, no_engine):
    asked = []

    def certify(urls, key, proof, **_):
        asked.append((urls, proof.adapter_id, len(proof.probes), proof.limits))
        return {"replica": {"effect_rms_nats": 1.0}}

    monkeypatch.setattr(worker.finetune, "certify", certify)
    job = finished_attempt(publish=True, alias="support")
    shop.worker.run_job(job.id)
    done = shop.ledger.get(job.id)
    assert done.state is State.SUCCEEDED, done.error
    adapters = adapters_of(shop, job.id)
    assert all(adapter.published for adapter in adapters)
    assert adapters[-1].certificates == {"replica": {"effect_rms_nats": 1.0}}
    assert asked == [([], adapters[-1].id, 2, Limits(shop.settings.effect_floor))]
    assert [(alias.name, alias.adapter_id) for alias in Aliases(shop.database).all()] == [("support", adapters[-1].id)]


def test_failed_certificates_quarantine_the_adapter(shop, finished_attempt, monkeypatch, no_engine):
    failed = {"http://replica": {"passed": False, "failed": ["effect"], "effect_rms_nats": 0.0}}

    def certify(*_, **__):
        raise JobFailed(Code.ADAPTER_NO_EFFECT, "It changes nothing.", details={"certificates": failed})

    monkeypatch.setattr(worker.finetune, "certify", certify)
    job = finished_attempt(publish=True, alias="support")
    assert failed_with(shop, job) == Code.ADAPTER_NO_EFFECT
    (adapter,) = adapters_of(shop, job.id)
    assert (adapter.state, adapter.final, adapter.certificates) == ("quarantined", True, failed)
    assert shop.ledger.get(job.id).error["details"]["certificates"] == failed
    assert Aliases(shop.database).all() == []


def test_adapter_that_is_not_published_moves_no_alias(shop, finished_attempt, no_engine):
    job = finished_attempt(publish=False, alias="support")
    shop.worker.run_job(job.id)
    assert shop.ledger.get(job.id).state is State.SUCCEEDED
    assert Aliases(shop.database).all() == []


def test_publishing_that_fails_registers_nothing(shop, finished_attempt, no_engine):
    job = finished_attempt(publish=True)
    assert failed_with(shop, job) == Code.SERVING_UNAVAILABLE
    assert all_adapters(shop) == []
    run_dir = shop.settings.runs_dir / job.id / "attempt-0000"
    assert list_checkpoints(run_dir), "the run is kept, so that a new attempt need not train again"


def test_what_is_just_being_deleted_is_kept_for_a_job_that_makes_it_again(
    shop, finished_attempt, monkeypatch, no_engine
):
    first = finished_attempt(publish=False)
    shop.worker.run_job(first.id)
    deletions = Deletions(shop.database)
    for adapter in adapters_of(shop, first.id):
        deletions.begin(adapter.id)
    found = []

    def certify(*_, **__):
        found.extend(deletions.finish(doomed, found.clear) for doomed in deletions.pending())
        return {"replica": {"effect_rms_nats": 1.0}}

    monkeypatch.setattr(worker.finetune, "certify", certify)
    again = finished_attempt(publish=True)
    shop.worker.run_job(again.id)
    assert set(found) == {Standing.KEPT}
    adapters = adapters_of(shop, again.id)
    assert len(adapters) == len(found)
    for adapter in adapters:
        assert adapter.state == "published"
        assert_stored(shop, adapter)
