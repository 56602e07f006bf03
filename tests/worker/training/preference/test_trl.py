"""Losses and gradients compared with those of TRL 1.16, on random log-probabilities of answers of 1 to 400 tokens."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
import torch

from bench.harness.peers import peers_python
from shared.contract.sections import PreferenceSection
from tests.support import preference_peers
from tests.support.preference_peers import CASES, KLS, KTO_CASES
from worker.training.preference.losses import preference_loss, rated_loss

pytestmark = [pytest.mark.bench, pytest.mark.long]  # TRL takes half a minute to import


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("trl")
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(made / "home")}
    command = [peers_python("trl"), preference_peers.__file__, str(made / "expected.json")]
    subprocess.run(command, check=True, env=offline, capture_output=True, timeout=240)
    return json.loads((made / "expected.json").read_bytes())


@pytest.mark.parametrize("number", range(len(CASES)))
def test_loss_and_gradient_are_trls(expected: Any, number: int) -> None:
    section = PreferenceSection.model_validate(CASES[number]["ours"])
    for pair, theirs in zip(expected["pairs"], expected["found"][number], strict=True):
        sums = [torch.tensor(scores, dtype=torch.float64).sum() for scores in pair["scores"]]
        policy = torch.stack(sums)[None].requires_grad_()
        lengths = torch.tensor([[len(scores) for scores in pair["scores"]]])
        reference = torch.tensor([pair["reference"]], dtype=torch.float64)
        loss = preference_loss(section, policy, reference, lengths).sum()
        loss = loss - section.sft_weight * policy[0, 0] / lengths[0, 0]
        loss.backward()  # type: ignore[no-untyped-call]
        assert policy.grad is not None
        assert loss.item() == pytest.approx(theirs["loss"], abs=1e-6, rel=1e-6)
        assert policy.grad[0].tolist() == pytest.approx(theirs["gradient"], abs=1e-6)


@pytest.mark.parametrize("number", range(len(KTO_CASES)))
def test_loss_and_gradient_of_rated_answers_are_trls(expected: Any, number: int) -> None:
    section = PreferenceSection.model_validate({"loss": "kto", **KTO_CASES[number]})
    pairs = expected["pairs"]
    reference = torch.tensor([one for pair in pairs for one in pair["reference"]], dtype=torch.float64)
    is_good = torch.tensor([True, False] * len(pairs))
    for kl, theirs in zip(KLS, expected["rated"][number], strict=True):
        policy = torch.tensor([sum(side) for pair in pairs for side in pair["scores"]], dtype=torch.float64)
        policy.requires_grad_()
        loss = rated_loss(section, policy - reference, is_good, max(0.0, kl)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        assert policy.grad is not None
        assert loss.item() == pytest.approx(theirs["loss"], abs=1e-6)
        assert policy.grad.tolist() == pytest.approx(theirs["gradient"], abs=1e-6)
        rewards = section.strength * (policy - reference).detach()
        found = [rewards[is_good].mean().item(), rewards[~is_good].mean().item()]
        assert found == pytest.approx(theirs["rewards"], abs=1e-6)
