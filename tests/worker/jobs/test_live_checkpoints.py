"""Checkpoints that are published while their run continues: certified first, quarantined separately, dropped with the
trainer's.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.contract.plan import ExecutionPlan
from shared.database.adapters import Adapter, Adapters, NewAdapter
from shared.database.connection import Database
from shared.database.deletions import Deletions
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.records import Kind
from shared.database.routing import Routing
from shared.errors import ArtifactInvalid, Code, JobFailed, LeaseLost, Unavailable
from shared.hashing import digest_file
from tests.support.builders import claimed, contract, submission
from tests.support.waiting import eventually
from worker.jobs import live_checkpoints
from worker.jobs.attempt import Stopped
from worker.jobs.certificates import ServedBase
from worker.jobs.child_process import ExitReason
from worker.jobs.live_checkpoints import LiveCheckpoints, RunEnded, own_scores
from worker.jobs.publish import ProbeSet
from worker.settings import WorkerSettings

PASSED = {"replica-1": {"passed": True, "failed": []}}
FAILED = {"replica-1": {"passed": False, "failed": ["engine_error"]}}


@dataclass
class Run:
    """A running job, whose replicas answer as the test says.

    Attributes:
        measured: ids of the adapters that were measured.
        answer: returns the certificates of one, or raises.
    """

    database: Database
    folder: Path
    answer: Callable[[ProbeSet], dict[str, Any]] = lambda _: PASSED
    measured: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leases = Leases(self.database, 60)
        self.lease = claimed(Jobs(self.database), self.leases)
        self.job_id = self.lease.job.id
        self.settings = WorkerSettings(home=self.folder, serving_urls=["http://replica"], serving_key="key")

    def live(self, **settings: Any) -> LiveCheckpoints:
        attempt = SimpleNamespace(
            lease=self.lease,
            leases=self.leases,
            settings=self.settings.model_copy(update=settings),
            storage=None,
            run_dir=self.folder,
            keeper=SimpleNamespace(lost=None),
        )
        plan = SimpleNamespace(contract=contract(), base=None)
        return LiveCheckpoints(attempt, _as_plan(plan), self.folder)  # type: ignore[arg-type]

    def write(self, step: int, *, probes: bool = True) -> Path:
        folder = self.folder / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "adapter_manifest.json").write_text(str(step))
        (folder / "trainer_state.json").write_text(json.dumps({"metrics": [{"step": step, "train_loss": 0.5}]}))
        if probes:
            (folder / "probes.json").write_text(json.dumps({"probes": [{"trained": [-1.0]}]}))
        return folder

    def made(self) -> list[Adapter]:
        return list(Adapters(self.database).of_job(self.job_id, deleted=True))

    def states(self) -> dict[int, str]:
        return {one.step: one.state for one in self.made()}

    def messages(self) -> list[str]:
        return [event.message for event in Jobs(self.database).events(self.job_id)]


def _as_plan(plan: Any) -> ExecutionPlan:
    return plan  # type: ignore[no-any-return]


@pytest.fixture
def run(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(database, tmp_path)

    def certify(_: list[str], __: str, probes: ProbeSet, **___: Any) -> dict[str, Any]:
        run.measured.append(probes.adapter_id)
        return run.answer(probes)

    def store(_: object, folder: Path, *, final: bool) -> NewAdapter:
        digest = digest_file(folder / "adapter_manifest.json")
        step = int((folder / "adapter_manifest.json").read_text())
        return NewAdapter(
            id=f"demo@{digest}",
            digest=digest,
            base_model="tiny",
            step=step,
            final=final,
            published=False,
            manifest={"rank": 8},
        )

    monkeypatch.setattr(live_checkpoints, "certify", certify)
    monkeypatch.setattr(live_checkpoints, "store_adapter", store)
    return run


def test_a_checkpoint_can_be_called_once_its_certificates_hold(run: Run) -> None:
    live = run.live()
    live.publish_next()
    assert run.made() == []
    run.write(5)
    live.publish_next()
    (made,) = run.made()
    assert (made.state, made.final, made.job_id) == ("published", False, run.job_id)
    assert (made.certificates, made.metrics) == (PASSED, {"step": 5, "train_loss": 0.5})
    assert run.messages()[-1] == f"The checkpoint of step 5 can be called as {made.id}."
    live.publish_next()
    assert run.measured == [made.id]
    Deletions(run.database).begin(made.id)
    assert run.states() == {5: "deleting"}, "its owner may delete it while the job runs"


def test_the_newest_comes_first_and_an_interim_one_never(run: Run) -> None:
    for step in (2, 4):
        run.write(step)
    run.write(6, probes=False)
    live = run.live()
    for _ in range(4):
        live.publish_next()
    assert [int(message.split()[4]) for message in run.messages() if "can be called" in message] == [4, 2]


def test_a_failed_certificate_quarantines_that_checkpoint_alone(run: Run) -> None:
    def answer(_: ProbeSet) -> dict[str, Any]:
        raise JobFailed(Code.ADAPTER_PARITY_FAILED, "too far", details={"certificates": FAILED})

    live = run.live()
    run.write(2)
    run.answer, passed = answer, run.answer
    live.publish_next()
    assert run.states() == {2: "quarantined"}
    assert run.messages()[-1] == "The checkpoint of step 2 cannot be called: ADAPTER_PARITY_FAILED: too far"
    run.write(4)
    run.answer = passed
    live.publish_next()
    assert run.states() == {2: "quarantined", 4: "published"}
    made = [one.model_copy(update={"published": True}) for one in run.made()]
    fields = NewAdapter.model_fields
    result = [NewAdapter.model_validate({name: getattr(one, name) for name in fields}) for one in made]
    result = [one.model_copy(update={"certificates": {}}) for one in result]
    run.leases.finish(run.lease, {}, adapters=result)
    assert run.states() == {2: "quarantined", 4: "published"}, "the result does not publish what has failed"


@pytest.mark.parametrize(("code", "measured"), [(Code.ADAPTER_PARITY_FAILED, 2), (Code.ADAPTER_NO_EFFECT, 3)])
def test_the_same_failure_twice_leaves_the_others_to_the_end(run: Run, code: Code, measured: int) -> None:
    """No effect is a matter of the first steps."""

    def answer(_: ProbeSet) -> dict[str, Any]:
        raise JobFailed(code, "none", details={"certificates": FAILED})

    run.answer, live = answer, run.live()
    for step in (2, 4, 6):
        run.write(step)
        live.publish_next()
    assert len(run.measured) == measured


def test_an_unavailable_replica_delays_it(run: Run) -> None:
    def away(_: ProbeSet) -> dict[str, Any]:
        raise Unavailable(Code.SERVING_UNAVAILABLE, "away")

    run.write(2)
    live, passed = run.live(), run.answer
    run.answer = away
    with pytest.raises(Unavailable):
        live.publish_next()
    assert run.states() == {2: "stored"}, "with a row it can be deleted"
    run.answer = passed
    live.publish_next()
    assert run.states() == {2: "published"}


def test_what_the_trainer_drops_is_deleted_unless_a_name_needs_it(run: Run) -> None:
    live = run.live()
    folders = {step: run.write(step) for step in (2, 4, 6)}
    for _ in folders:
        live.publish_next()
    named = next(one for one in run.made() if one.step == 4)
    Aliases(run.database).set("prod", Routing.to(named.id), Actor(id="key-1", name="alice"))
    for step in (2, 4):
        shutil.rmtree(folders[step])
    live.withdraw_dropped()
    assert run.states() == {2: "deleting", 4: "published", 6: "published"}


def test_the_last_callable_checkpoint_stays_until_a_later_one_is_published(run: Run) -> None:
    """A run that writes checkpoints faster than they are measured has one that answers, also after a cancel."""
    live = run.live()
    folders = {step: run.write(step) for step in (2, 4)}
    for _ in folders:
        live.publish_next()
    later = run.write(6)
    for step in (2, 4):
        shutil.rmtree(folders[step])
    assert live.withdraw_dropped(), "one is left for a later call"
    assert run.states() == {2: "deleting", 4: "published"}
    live.publish_next()
    assert not live.withdraw_dropped()
    assert run.states() == {2: "deleting", 4: "deleting", 6: "published"}
    assert later.is_dir()


@pytest.mark.parametrize(
    "end", [Stopped(ExitReason.CANCELLED), JobFailed(Code.LOSS_NOT_FINITE, "The loss is not finite.")]
)
def test_a_finished_training_drops_the_rest_and_one_cut_short_does_not(
    run: Run, monkeypatch: pytest.MonkeyPatch, end: Exception
) -> None:
    monkeypatch.setattr(live_checkpoints, "POLL_SECONDS", 600.0)
    folder = run.write(2)
    with suppress(type(end)), run.live() as live:
        live.publish_next()
        shutil.rmtree(folder)
        run.write(4)
        raise end
    assert run.states() == {2: "published"}
    with run.live():
        pass
    assert run.states() == {2: "deleting"}


def test_a_checkpoint_that_an_evaluation_asks_stays_until_it_has_ended(run: Run) -> None:
    live = run.live()
    folders = {step: run.write(step) for step in (2, 4)}
    for _ in folders:
        live.publish_next()
    asked = next(one for one in run.made() if one.step == 2)
    evaluation = submission(kind=Kind.EVALUATE, plan={"models": [{"name": "mine", "served": asked.id}]})
    job, _ = Jobs(run.database).submit(evaluation)
    shutil.rmtree(folders[2])
    live.withdraw_dropped()
    assert run.states() == {2: "published", 4: "published"}
    Jobs(run.database).cancel(job.id)
    live.withdraw_dropped()
    assert run.states() == {2: "deleting", 4: "published"}


def test_the_thread_deletes_a_dropped_checkpoint_when_the_evaluation_has_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's checkpoints do not change meanwhile, and a pass in vain writes nothing."""
    monkeypatch.setattr(live_checkpoints, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(live_checkpoints, "RETRY_SECONDS", 0.02)
    passes, begun = [], []
    withdraw, begin = LiveCheckpoints.withdraw_dropped, Deletions.begin
    monkeypatch.setattr(
        LiveCheckpoints, "withdraw_dropped", lambda self, **options: (withdraw(self, **options), passes.append(1))[0]
    )
    monkeypatch.setattr(Deletions, "begin", lambda self, one: (begun.append(one), begin(self, one))[1])
    folders = {step: run.write(step) for step in (2, 4)}
    with run.live():
        eventually(lambda: run.states() == {2: "published", 4: "published"}, 20)
        asked = next(one for one in run.made() if one.step == 2)
        evaluation = submission(kind=Kind.EVALUATE, plan={"models": [{"name": "mine", "served": asked.id}]})
        job, _ = Jobs(run.database).submit(evaluation)
        shutil.rmtree(folders[2])
        before = len(passes)
        eventually(lambda: len(passes) >= before + 4, 20)
        assert (run.states(), begun) == ({2: "published", 4: "published"}, [])
        Jobs(run.database).cancel(job.id)
        eventually(lambda: run.states() == {2: "deleting", 4: "published"}, 20)
        before = len(passes)
        time.sleep(0.2)
        assert len(passes) <= before + 1, "nothing is left to try again"


def test_what_a_killed_attempt_had_dropped_is_deleted_by_the_next(run: Run) -> None:
    """The kill came after the trainer had removed the folder and before the deletion. Steps that are made again stay."""
    live = run.live()
    folders = {step: run.write(step) for step in (2, 4, 6)}
    for _ in folders:
        live.publish_next()
    run.leases.release(run.lease, "killed")
    lease = run.leases.claim(run.job_id, "another")
    assert lease
    run.lease = lease
    for step in (2, 6):
        shutil.rmtree(folders[step])
    run.live().withdraw_dropped()
    assert run.states() == {2: "deleting", 4: "published", 6: "published"}


def test_a_checkpoint_of_other_bytes_at_the_same_step_is_replaced(run: Run) -> None:
    """A run that continues with another number of processes repeats its steps, with different rounding."""
    live, folder = run.live(), run.write(2)
    live.publish_next()
    (before,) = run.made()
    (folder / "adapter_manifest.json").write_text("2 ")
    again = run.live()
    again.publish_next()
    again.withdraw_dropped()
    assert {one.id: one.state for one in run.made()}[before.id] == "deleting"


def test_a_refusal_without_certificates_lasts(run: Run) -> None:
    def answer(_: ProbeSet) -> dict[str, Any]:
        raise ArtifactInvalid(Code.ADAPTER_SHAPE_MISMATCH, "it does not fit")

    live = run.live()
    run.write(2)
    run.answer = answer
    live.publish_next()
    assert run.states() == {2: "quarantined"}
    run.live().publish_next()
    assert len(run.measured) == 1, "a later attempt does not try it again"
    (made,) = run.made()
    result = NewAdapter.model_validate({name: getattr(made, name) for name in NewAdapter.model_fields})
    run.leases.finish(run.lease, {}, adapters=[result.model_copy(update={"published": True, "certificates": {}})])
    assert run.states() == {2: "quarantined"}, "the result does not publish what was refused"


def test_a_checkpoint_that_a_rollback_may_need_stays(run: Run) -> None:
    live, by_id = run.live(), Actor(id="key-1", name="alice")
    folders = {step: run.write(step) for step in (2, 4)}
    for _ in folders:
        live.publish_next()
    for step in (2, 4):
        named = next(one for one in run.made() if one.step == step)
        Aliases(run.database).set("prod", Routing.to(named.id), by_id)
    shutil.rmtree(folders[2])
    live.withdraw_dropped()
    assert run.states() == {2: "published", 4: "published"}


def test_an_equal_checkpoint_of_an_earlier_job_stays(run: Run) -> None:
    live, folder = run.live(), run.write(2)
    live.publish_next()
    earlier = run.job_id
    run.lease = claimed(Jobs(run.database), run.leases)
    run.job_id = run.lease.job.id
    live = run.live()
    live.publish_next()
    shutil.rmtree(folder)
    live.withdraw_dropped()
    assert [one.state for one in Adapters(run.database).of_job(earlier, deleted=True)] == ["published"]


def test_an_attempt_that_lost_its_lease_deletes_nothing(run: Run) -> None:
    live, folder = run.live(), run.write(2)
    live.publish_next()
    live._attempt.keeper.lost = LeaseLost(Code.LEASE_LOST, "test")
    shutil.rmtree(folder)
    live.withdraw_dropped()
    assert run.states() == {2: "published"}


def test_the_last_checkpoint_becomes_the_result_that_equals_it(run: Run) -> None:
    live = run.live()
    run.write(2)
    live.publish_next()
    (made,) = run.made()
    fields = {name: getattr(made, name) for name in NewAdapter.model_fields}
    result = NewAdapter.model_validate(fields | {"final": True, "metrics": {"whole": 1}, "certificates": {"all": {}}})
    run.leases.finish(run.lease, {}, adapters=[result])
    (made,) = run.made()
    assert (made.final, made.metrics, made.certificates) == (True, {"whole": 1}, {"all": {}})


@pytest.mark.parametrize(("parity", "compared"), [("full", True), ("shift", False)])
def test_the_operator_switches_the_engine_error_off(run: Run, parity: str, *, compared: bool) -> None:
    run.write(2)
    seen: list[bool] = []

    def answer(probes: ProbeSet) -> dict[str, Any]:
        seen.append(probes.reference is not None)
        return PASSED

    run.answer = answer
    run.live(parity=parity).publish_next()
    assert seen == [compared]


def test_probe_chats_are_encoded_for_every_replica(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template may write the date, which changes during a run."""
    encoded: list[object] = []
    monkeypatch.setattr(LiveCheckpoints, "_tokenizer", "tokenizer")
    monkeypatch.setattr(live_checkpoints, "encode_chats", encoded.append)

    def answer(probes: ProbeSet) -> dict[str, Any]:
        for _ in range(2):
            probes.encode_chats()
        return PASSED

    run.write(2)
    run.answer = answer
    run.live().publish_next()
    assert encoded == ["tokenizer"] * 2


def test_a_resumed_attempt_measures_nothing_again_and_a_stale_one_writes_nothing(run: Run) -> None:
    run.write(2)
    run.live().publish_next()
    stale = run.live()
    run.leases.release(run.lease, "test")
    lease = run.leases.claim(run.job_id, "another")
    assert lease
    run.write(4)
    with pytest.raises(LeaseLost):
        stale.publish_next()
    run.lease = lease
    live = run.live()
    for _ in range(3):
        live.publish_next()
    assert sorted(run.states()) == [2, 4]
    assert len(run.measured) == 2


@pytest.mark.parametrize("off", [{"live_checkpoints": False}, {"serving_urls": []}])
def test_it_can_be_switched_off(run: Run, off: dict[str, Any]) -> None:
    run.write(2)
    assert run.live().is_on
    with run.live(**off) as live:
        assert not live._thread.is_alive()


def test_the_thread_publishes_until_the_training_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_checkpoints, "POLL_SECONDS", 0.01)
    run.write(2)
    with run.live() as live:
        while not run.made():
            pass
    assert not live._thread.is_alive()
    run.write(4)
    with pytest.raises(RunEnded):
        live.publish_next()
    assert run.states() == {2: "published"}


@pytest.mark.parametrize(
    ("quant", "dtype", "served", "twin_of", "compared"),
    [
        ("none", "float32", "float32", None, True),
        ("none", "float32", "bfloat16", None, False),
        ("nf4", "float32", "float32", None, False),
        ("nf4", "float32", "float32", "tiny", False),
    ],
)
def test_the_trainers_scores_are_the_reference_on_equal_weights(
    quant: str, dtype: str, served: str, twin_of: str | None, *, compared: bool
) -> None:
    manifest = {"quant": {"base_quant": quant}, "trained_dtype": dtype}
    found = own_scores([{"trained": [-1.0]}], manifest, ServedBase("tiny", "d" * 64, twin_of, served))
    assert found == ([[-1.0]] if compared else None)
