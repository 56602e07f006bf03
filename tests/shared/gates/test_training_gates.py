"""Properties of the training data: which rows were spoken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.datasets.report import inspect_file
from shared.gates.evaluate import judge
from shared.gates.policy import GatePolicy
from shared.gates.training_gates import voice_fraction
from tests.support.gate_evidence import TRAINED, evidence

MODAL_MIX = GatePolicy.model_validate({"version": "1", "gates": {"modal_mix": {}}})


@pytest.mark.parametrize(
    ("labels", "fraction", "status"),
    [
        (
            [{"lane": "vox_speech"}, {"lane": "vox_codegen"}, {"lane": "vox_tooling"}, {"lane": "vox_codegen"}],
            0.25,
            "passed",
        ),
        ([{"lane": "vox_speech"}, {"lane": "vox_codegen"}], 0.5, "failed"),
        ([{"category": "asr"}, {"category": "documentation"}], 0.5, "failed"),
        ([{"category": "basra"}, {"category": "voiceless"}], 0.0, "passed"),
        ([{"lane": "vox_speech"}, {}], None, "missing_evidence"),
        ([{}, {}], None, "missing_evidence"),
    ],
)
def test_rows_were_spoken_whose_lane_or_category_says_so(
    tmp_path: Path, labels: list[dict[str, str]], fraction: float | None, status: str
) -> None:
    path = tmp_path / "train.jsonl"
    rows = [{"prompt": f"Question {number}?", "response": "Yes."} | each for number, each in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = voice_fraction(inspect_file(path).training.model_dump(mode="json"))
    assert found == fraction
    known = evidence(training=TRAINED.model_copy(update={"voice_fraction": found}))
    (row,) = judge(MODAL_MIX, known).gates
    assert (row.status, row.value) == (status, fraction)
