"""KTO from end to end in the trainer: what it learns, reports, keeps, and how it resumes; a whole run compared with
TRL's.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import worker.training.checkpoint
import worker.training.preference.compared
import worker.training.preference.kto
from bench.harness.peers import peers_python
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest, verify_adapter
from shared.contract.sections import PreferenceSection
from shared.errors import JobFailed
from shared.hashing import digest_file
from tests.support import preference_peers
from tests.support.preference_rows import RATED, rated_row
from tests.support.training_runs import PauseAfter
from worker.child_runtime import StopRequested
from worker.run_folder import (
    ADAPTER_FOLDER,
    EVALUATION_NAME,
    METRICS_NAME,
    REFERENCE_NAME,
    TELEMETRY_NAME,
    list_checkpoints,
    read_json,
)
from worker.training.data.row_order import RowOrder
from worker.training.model.load import load_tokenizer
from worker.training.preference.data import read_preferences
from worker.training.preference.kto import KahnemanTversky
from worker.training.preference.rated import PreparedRatedAnswers, no_answers
from worker.training.schedule import learning_rate
from worker.training.self_evaluation.evaluate import SAMPLES_VARIABLE

KTO = {"method": {"type": "kto"}}
EXEC = {"epochs": 6, "batch_size": 4, "checkpoint_every": 1, "learning_rate": 0.005}
STEPS = 24
HELD_OUT = [
    rated_row("What is a cat?", "A cat is a word.", label=True),
    rated_row("What is a dog?", "I do not know, sorry.", label=False),
]


def plan(tiny: Any, folder: Path, rows: list[Any] = RATED, **sections: Any) -> Any:
    return tiny.plan_run(folder, rows, HELD_OUT, **KTO | {"exec": EXEC} | sections)


def told(run_dir: Path, event: str) -> list[dict[str, float]]:
    lines = map(json.loads, (run_dir / TELEMETRY_NAME).read_text().splitlines())
    return [line["payload"] for line in lines if line["event"] == event]


def result(run_dir: Path) -> dict[str, str]:
    files = [run_dir / ADAPTER_FOLDER / name for name in (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME)]
    return {path.name: digest_file(path) for path in [*files, run_dir / METRICS_NAME, run_dir / REFERENCE_NAME]}


@pytest.fixture(scope="module")
def whole(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.training.checkpoint, "KEEP", STEPS)
        run_dir: Path = tiny.train(plan(tiny, folder), folder / "run")
    assert len(list_checkpoints(run_dir)) == STEPS - 1
    return run_dir


def test_first_loss_is_that_of_an_untrained_adapter_and_then_it_learns(whole: Path) -> None:
    steps = told(whole, "step")
    assert steps[0]["loss"] == pytest.approx(0.5, abs=1e-6)
    assert steps[0]["kl"] == pytest.approx(0.0, abs=1e-5)
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert steps[-1]["reward_accuracy"] == 1.0
    both = [step for step in steps if "reward_margin" in step]
    assert both[-1]["reward_margin"] == both[-1]["rewards_chosen"] - both[-1]["rewards_rejected"] > 0


def test_a_step_reports_only_the_answers_that_it_has(tiny: Any, tmp_path: Path) -> None:
    run = plan(tiny, tmp_path, exec=EXEC | {"epochs": 1, "batch_size": 1})
    for step in told(tiny.train(run, tmp_path / "run"), "step"):
        assert {"preference_loss", "kl", "reward_accuracy"} <= step.keys()
        assert ("rewards_chosen" in step) != ("rewards_rejected" in step)
        assert "reward_margin" not in step


def test_validation_is_the_loss_of_the_held_out_answers(whole: Path) -> None:
    scores = told(whole, "validation")
    assert scores[-1]["val_loss"] < scores[0]["val_loss"] < 0.5


def test_metrics_have_the_reference_point(whole: Path) -> None:
    rows = list(csv.DictReader((whole / METRICS_NAME).read_text().splitlines()))
    assert len(rows) == STEPS
    assert max(float(row["kl"]) for row in rows) > 0


def test_manifest_and_card_name_the_method(whole: Path) -> None:
    manifest = AdapterManifest.model_validate_json((whole / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())
    verify_adapter(whole / ADAPTER_FOLDER, manifest)
    assert manifest.preference is not None
    assert (manifest.method, manifest.preference.loss, manifest.preference.beta) == ("kto", "kto", 0.1)
    assert manifest.preference.reference_digest == digest_file(whole / REFERENCE_NAME)
    assert "tuned by preference (KTO, beta 0.1) from its base" in (whole / "MODEL_CARD.md").read_text()


def test_self_evaluation_measures_the_answers_that_are_rated_good(whole: Path) -> None:
    (measured,) = told(whole, "self_evaluation")
    assert (measured["causes"], measured["rows"]) == ([], 1)


def test_bad_answers_are_never_references_of_the_model_card(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails while lines of the training file are looked up in a validation file whose answers are all bad."""
    sections = {**KTO, "exec": EXEC | {"epochs": 1}}
    bad = [rated_row(f"What is {name}?", "I do not know, sorry.", label=False) for name in ("a", "b", "c", "d")]
    run = tiny.plan_run(tmp_path, RATED[:8], bad, **sections)
    monkeypatch.setenv(SAMPLES_VARIABLE, "4")
    found = read_json(tiny.train(run, tmp_path / "run") / EVALUATION_NAME)
    assert (found["source"], found["rows"], len(found["sample_answers"])) == ("training", 4, 4)
    assert [one["reference"] for one in found["sample_answers"] if "do not know" in one["reference"]] == []


@pytest.mark.parametrize("step", [13, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 23))])
def test_killed_after_a_step_the_bytes_are_the_same(tiny: Any, whole: Path, tmp_path: Path, step: int) -> None:
    torch.rand(step)
    resumed = tiny.train(plan(tiny, tmp_path), tmp_path / "run", resume=list_checkpoints(whole)[step - 1])
    assert result(resumed) == result(whole)


def test_paused_and_resumed_twice_the_bytes_are_the_same(tiny: Any, whole: Path, tmp_path: Path) -> None:
    run, checkpoint = plan(tiny, tmp_path), None
    for attempt in range(2):
        with pytest.raises(StopRequested):
            tiny.train(run, tmp_path / str(attempt), resume=checkpoint, stop=PauseAfter(5))
        checkpoint = list_checkpoints(tmp_path / str(attempt))[-1]
    assert result(tiny.train(run, tmp_path / "last", resume=checkpoint)) == result(whole)


@pytest.mark.parametrize("wrong", ["shuffled", "other model"])
def test_a_wrong_reference_trains_nothing(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    real = worker.training.preference.compared.score_reference

    def score(*given: Any) -> torch.Tensor:
        scores = real(*given)
        return scores.flip(0) if wrong == "shuffled" else scores - torch.tensor([0.5, 0.0])

    monkeypatch.setattr(worker.training.preference.compared, "score_reference", score)
    with pytest.raises(JobFailed) as refused:
        tiny.train(plan(tiny, tmp_path), tmp_path / "run")
    assert refused.value.code == "REFERENCE_MISMATCH"
    assert told(tmp_path / "run", "step") == []


@pytest.mark.parametrize("budget", [1, 60])
def test_losses_do_not_depend_on_the_micro_batches(
    tiny: Any, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    module = worker.training.preference.kto
    real = module.rated_batches
    monkeypatch.setattr(module, "rated_batches", lambda rows, _budget, **more: real(rows, budget, **more))
    # Eight steps: after the first of them the weights are what the pieces before have made of them.
    run = plan(tiny, tmp_path, exec=EXEC | {"checkpoint_every": STEPS})
    with pytest.raises(StopRequested):
        tiny.train(run, tmp_path / "run", stop=PauseAfter(8))
    ours = told(tmp_path / "run", "step")
    assert len(ours) == 8
    for one, other in zip(ours, told(whole, "step")[:8], strict=True):
        assert (one["loss"], one["kl"]) == pytest.approx((other["loss"], other["kl"]), abs=1e-4)


def test_the_loss_waits_for_nothing_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On meta tensors an operation fails if a GPU would have to tell the size of its result."""
    meta = torch.device("meta")
    method = KahnemanTversky(PreferenceSection.model_validate({"loss": "kto"}))
    scores = torch.zeros(2, device=meta)
    monkeypatch.setattr(method, "_gained", lambda *_: (scores, scores))
    batch = replace(no_answers(), lengths=torch.tensor([3, 4]), is_good=torch.tensor([True, False]))
    assert method.loss(None, batch, meta).loss.shape == ()  # type: ignore[arg-type]


def test_unlikely_answers_are_reported_with_the_method() -> None:
    falling = {"rewards_chosen": -1.0, "rewards_rejected": -2.0, "logps_chosen": -30.0, "logps_rejected": -40.0}
    method = KahnemanTversky(PreferenceSection.model_validate({"loss": "kto"}))
    warnings = [found for _ in range(30) if (found := method.warning(falling))]
    assert [(found["code"], found["method"]) for found in warnings] == [("LIKELIHOOD_FALLS", "kto")]


@pytest.mark.bench
@pytest.mark.long
def test_a_whole_run_is_trls(tiny_llama: Any, tmp_path: Path) -> None:
    """TRL's own KTOTrainer, fed with our token ids and partners in our order."""
    weights = {"desirable_weight": 1.0, "undesirable_weight": 1.5, "beta": 0.2}
    exec_ = {"epochs": 5, "batch_size": 4, "learning_rate": 0.005, "warmup_steps": 1}
    run = tiny_llama.plan_run(
        tmp_path, RATED, **KTO | {"quant": {"base": "none"}, "preference": weights, "exec": exec_}
    )
    ours = told(tiny_llama.train(run, tmp_path / "run"), "step")
    contract = run.plan.contract
    tokenizer = load_tokenizer(tiny_llama.base)
    data = read_preferences(run, tokenizer, 1 << 20, tmp_path / "cache", PreparedRatedAnswers)
    order = RowOrder(contract, data.difficulties, 0)
    answers = [data.row(number) for step in order.after(0) for number in step.rows]
    rates = [learning_rate(step, len(ours), contract.exec.learning_rate, 1) for step in range(len(ours))]
    rows = [preference_peers.rated_ids(answer) for answer in answers]
    work = preference_peers.run_of(run, len(ours), rows, rates, tmp_path / "trl")
    (tmp_path / "work.json").write_text(json.dumps(work | {"kto": weights}))
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [peers_python("trl"), preference_peers.__file__, "run", str(tmp_path / "work.json")]
    subprocess.run(command, check=True, env=offline, capture_output=True, timeout=400)
    theirs = json.loads((tmp_path / "work.json").read_bytes())["losses"]
    assert len(ours) == len(theirs) == 20
    for one, (loss, kl) in zip(ours, theirs, strict=True):
        assert one["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-5)
        assert one["kl"] == pytest.approx(kl, rel=1e-5, abs=1e-4)
    assert max(one["kl"] for one in ours) > 0.1  # the reference point takes part
