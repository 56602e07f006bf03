"""Qwen3.5 on the real vLLM, which needs torchvision for it and does not have it here: text-only, and with a vision part
as on the hub.

The reference is transformers with PEFT, in bfloat16, the only dtype in which vLLM computes linear attention on a CPU.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.families import DELTA_NET, GATED_MIXER, GATED_MLP
from tests.support.serving_installation import (
    KEY,
    ServingInstallation,
    make_serving_installation,
    random_b,
    train_tokenizer,
)
from tests.support.vllm_server import VllmServer, start_server
from worker.jobs.certificates import LOW_PRECISION_LIMIT, differences, rms
from worker.jobs.publish import REQUEST_SECONDS
from worker.replica_client import BlockingReplicaClient

pytestmark = pytest.mark.timeout(600)

KINDS = sorted({*GATED_MIXER.linears, *DELTA_NET.linears, *GATED_MLP})
"""The eleven kinds of linear layers, by their names in a block."""
TEXTS = ["the red fox runs near the forest", "a ship sails by the stars", "hello user, hello assistant"]
LEAST_COSINE = 0.95
"""Between what an adapter changes where it is served and by PEFT, both in bfloat16: measured 0.998 and more. Between two kinds' adapters
it is 0.78 at most, so one that vLLM put on another layer would not pass.
"""


def build_qwen3_5(folder: Path, *, composite: bool) -> None:
    """Write a random Qwen3.5: three layers of linear attention and a full one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from shared.base_models.families import SPECS, Family
    from worker.pretrain import with_vision_part

    tokenizer = train_tokenizer()
    torch.manual_seed(0)
    tokens = {"vocab_size": 320, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    shape = {**(SPECS[Family.QWEN3_5].tiny_base or {}), "initializer_range": 0.1, "max_position_embeddings": 256}
    config = AutoConfig.for_model("qwen3_5_text", **shape, **tokens)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    (with_vision_part(Family.QWEN3_5, model).to(torch.bfloat16) if composite else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(base: Path, *, composite: bool) -> Any:
    """A copy of the model in bfloat16, of the class that has the names of the base's files."""
    return copy.deepcopy(load_once(base, composite))


@functools.cache
def load_once(base: Path, composite: bool) -> Any:
    """Read the model from its files."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if composite else AutoModelForCausalLM
    return kind.from_pretrained(base, dtype=torch.bfloat16).eval()


def save_adapter(base: Path, folder: Path, *, seed: int, rank: int, composite: bool) -> None:
    """A PEFT adapter with a random B, made on that class: on the kind of linear layers whose number is the seed, or on all."""
    import torch
    from peft import LoraConfig, get_peft_model

    kinds = "|".join(KINDS[seed : seed + 1] or KINDS).replace(".", r"\.")
    targets = rf".*{'language_model' if composite else 'model'}\.layers\.\d+\.({kinds})"
    torch.manual_seed(seed)
    tuned = get_peft_model(
        load(base, composite=composite), LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    )
    # One kind alone in a random model must be heard above the rounding; all of them together would drown it.
    random_b(tuned, 1.0 if seed < len(KINDS) else 0.1)
    tuned.save_pretrained(folder)


@pytest.fixture(scope="module", params=["composite", pytest.param("text-only", marks=pytest.mark.long)])
def replica(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServingInstallation, VllmServer, Callable[[Path | None], Any]]]:
    """An installation whose base is such a model, a replica of it, and what computes its reference: an adapter's folder → the model."""
    composite = request.param == "composite"
    installation = make_serving_installation(
        tmp_path_factory.mktemp("qwen3_5"),
        functools.partial(build_qwen3_5, composite=composite),
        functools.partial(save_adapter, composite=composite),
    )

    def reference(adapter: Path | None) -> Any:
        from peft import PeftModel

        model = load(installation.base, composite=composite)
        return PeftModel.from_pretrained(model, adapter).eval() if adapter else model

    with start_server(installation) as server:
        yield installation, server, reference


def expected_scores(model: Any, probes: list[dict[str, Any]]) -> list[list[float]]:
    """Log-probabilities (nats) that transformers gives each token of the probes but the first."""
    import torch

    found = []
    with torch.no_grad():
        for probe in probes:
            ids = torch.tensor([probe["token_ids"]])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            found.append(logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


def test_each_kind_of_layer_is_adapted_as_peft_adapts_it(
    replica: tuple[ServingInstallation, VllmServer, Callable[[Path | None], Any]],
) -> None:
    installation, server, reference = replica
    ids = [train_tokenizer().encode(text) for text in TEXTS]
    probes = [{"token_ids": row, "positions": list(range(1, len(row)))} for row in ids]
    names = [*KINDS, "all of them"]
    adapters = [installation.publish(f"kind-{number}", seed=number) for number in range(len(names))]
    with BlockingReplicaClient(server.url, KEY, REQUEST_SECONDS) as client:
        assert client.capabilities().dtype == "bfloat16"
        base = [client.scores(installation.entry.name, probe) for probe in probes]
        served = {
            name: [client.scores(adapter.adapter_id, probe) for probe in probes]
            for name, adapter in zip(names, adapters, strict=True)
        }
    expected_base = expected_scores(reference(None), probes)
    cosines = {}
    for name, adapter in zip(names, adapters, strict=True):
        expected = expected_scores(reference(installation.folder(adapter)), probes)
        cosines[name] = cosine(differences(expected_base, expected), differences(base, served[name]))
    error = rms(differences(expected_base, base))
    print(json.dumps({"error": error, "cosines": cosines}))
    assert error < LOW_PRECISION_LIMIT
    assert min(cosines.values()) > LEAST_COSINE


def cosine(one: list[float], other: list[float]) -> float:
    """Cosine of the angle between two vectors; 0 where one is zero."""
    product = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / product if product else 0.0
