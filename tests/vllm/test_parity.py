"""Serving compared with training: vLLM's greedy tokens with an adapter, and those of a merged model, equal those of
transformers and peft.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from shared.artifacts.manifests import AdapterManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, MergeFidelity
from shared.base_models.catalog import BaseModelEntry
from shared.model_card.evaluation_rows import EvaluationRow, EvaluationRows, SamplePrompt
from shared.model_card.self_evaluation import AnswerSource, RowSource, SelfEvaluation
from shared.tokenization.tokenizer import Tokenizer
from tests.support.serving_installation import KEY, ServingInstallation
from tests.support.vllm_server import VllmServer
from worker.jobs.certificates import Scores, rms
from worker.jobs.publish import REQUEST_SECONDS
from worker.jobs.served_evaluation import ServedPair
from worker.probe_chats import encode_chats
from worker.replica_client import BlockingReplicaClient

PROMPTS = [
    "the red fox",
    "a ship sails by",
    "hello user",
    "the stars near the forest",
    "assistant",
    "x_y():",
    "数据 and",
    "fox fox",
]
TOKENS = 24
LEAST_AGREEMENT = 0.99
"""Both compute in float32, and differ only where two tokens are equally likely to six digits."""


def greedy(client: httpx.Client, model: str, prompt: list[int]) -> list[int]:
    """Token ids that a replica continues a prompt with."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body | {"return_token_ids": True})
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def agreement(client: httpx.Client, name: str, model: Any, tokenizer: Tokenizer) -> float:
    """Share of a replica's greedy tokens that the model finds likeliest after the same tokens."""
    import torch

    same = []
    for text in PROMPTS:
        prompt = tokenizer.encode(text).ids
        answer = greedy(client, name, prompt)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
        likeliest = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        same += [one == other for one, other in zip(answer, likeliest, strict=True)]
    assert len(same) == len(PROMPTS) * TOKENS
    return sum(same) / len(same)


@pytest.fixture(scope="module")
def tuned(serving_installation: ServingInstallation, merged_adapter: AdapterManifest) -> Any:
    """transformers and peft on base and adapter, in float32: what training and its certificates compute with."""
    import torch

    from worker.score import load

    folder = serving_installation.folder(merged_adapter)
    return load(serving_installation.base, folder, torch.float32, torch.device("cpu")).eval()


def own_measure(model: Any, rows: list[EvaluationRow]) -> tuple[float, float]:
    """Loss (nats per token) and share of arg-max hits, by transformers and peft alone."""
    import torch

    losses: list[float] = []
    hits: list[float] = []
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.token_ids]), use_cache=False).logits[0].float()
        for at in row.positions:
            losses.append(-float(logits[at - 1].log_softmax(-1)[row.token_ids[at]]))
            hits.append(float(logits[at - 1].argmax()) == row.token_ids[at])
    return sum(losses) / len(losses), sum(hits) / len(hits)


def test_the_served_evaluation_is_what_transformers_and_peft_measure(
    vllm_server: VllmServer, serving_installation: ServingInstallation, merged_adapter: AdapterManifest, tuned: Any
) -> None:
    tokenizer = Tokenizer.load(serving_installation.base)
    with vllm_server.client() as client:
        prompts = [tokenizer.encode(text).ids for text in PROMPTS]
        # Continued by the adapter itself, so that its arg-max is right here and there.
        rows = [
            EvaluationRow(
                token_ids=(*ids, *greedy(client, merged_adapter.adapter_id, ids)[:12]), positions=(1, len(ids) + 1)
            )
            for ids in prompts
        ]
    samples = [
        SamplePrompt(line=n, role="user", text=text, turns=1, ids=ids, reference="")
        for n, (text, ids) in enumerate(zip(PROMPTS, prompts, strict=True), start=1)
    ]
    before = SelfEvaluation(
        source=RowSource.TRAINING, rows=8, rows_available=8, tokens=16, loss=None, token_accuracy=None, precision="nf4"
    )
    base = {"name": serving_installation.entry.name, "dtype": "float32", "twin_of": None}
    with BlockingReplicaClient(vllm_server.url, KEY, REQUEST_SECONDS) as replica:
        models = ServedPair(replica, merged_adapter.adapter_id, base)
        found = models.measure(before, EvaluationRows(rows=tuple(rows), samples=tuple(samples)), 600.0)
    assert found.served is not None
    assert (found.served.rows, found.served.tokens, found.served.weights) == (8, 16, "original")
    assert found.served.loss is not None
    assert found.served.token_accuracy is not None
    loss, hits = own_measure(tuned, rows)
    assert found.served.loss.tuned == pytest.approx(loss, abs=1e-4)
    assert found.served.token_accuracy.tuned == pytest.approx(hits)
    with tuned.disable_adapter():
        loss, hits = own_measure(tuned, rows)
    assert found.served.loss.base == pytest.approx(loss, abs=1e-4)
    assert found.served.token_accuracy.base == pytest.approx(hits)
    assert found.answers_from is AnswerSource.REPLICA
    assert [sample.prompt for sample in found.sample_answers] == PROMPTS
    assert any(sample.base != sample.tuned for sample in found.sample_answers)


def test_served_tokens_are_the_trained_models(
    vllm_server: VllmServer, serving_installation: ServingInstallation, merged_adapter: AdapterManifest, tuned: Any
) -> None:
    tokenizer = Tokenizer.load(serving_installation.base)
    with vllm_server.client() as client:
        assert agreement(client, merged_adapter.adapter_id, tuned, tokenizer) >= LEAST_AGREEMENT
        # The same measure of the base alone: it would not pass.
        assert agreement(client, serving_installation.entry.name, tuned, tokenizer) < 0.9


def test_a_merged_model_is_served_with_its_adapters_tokens(
    merged_server: VllmServer, serving_installation: ServingInstallation, merged: BaseModelEntry, tuned: Any
) -> None:
    with merged_server.client() as client:
        assert agreement(client, merged.name, tuned, Tokenizer.load(serving_installation.base)) >= LEAST_AGREEMENT


def test_a_merged_model_has_the_numbers_of_its_adapters_certificates(
    merged_server: VllmServer,
    vllm_server: VllmServer,
    serving_installation: ServingInstallation,
    merged_adapter: AdapterManifest,
    merged: BaseModelEntry,
    tuned: Any,
) -> None:
    """Engine error, effect and template of the merged model on its replica, measured as publishing measures an adapter."""
    import torch

    from worker.training.probes import score_probes

    tokenizer = Tokenizer.load(serving_installation.base)
    ids = [tokenizer.encode(text).ids for text in PROMPTS]
    probes = [{"token_ids": row, "positions": list(range(1, len(row)))} for row in ids if len(row) > 1]

    def differences(one: Scores, other: Scores) -> float:
        return rms([b - a for mine, theirs in zip(one, other, strict=True) for a, b in zip(mine, theirs, strict=True)])

    with BlockingReplicaClient(merged_server.url, KEY, REQUEST_SECONDS) as replica:
        served = [replica.scores(merged.name, probe) for probe in probes]
        assert (replica.capabilities().base, replica.capabilities().served_digest) == (merged.name, merged.digest)
        encoded = encode_chats(tokenizer)
        for chat, expected in encoded.chats:
            assert replica.token_ids(merged.name, chat.messages, prompt=chat.prompt, tools=chat.tools) == expected
    with BlockingReplicaClient(vllm_server.url, KEY, REQUEST_SECONDS) as replica:
        base, with_adapter = (
            [replica.scores(name, probe) for probe in probes]
            for name in (serving_installation.entry.name, merged_adapter.adapter_id)
        )
    reference = score_probes(tuned, probes, torch.device("cpu"))
    print(json.dumps({"engine": differences(reference, served), "effect": differences(base, served)}))
    assert differences(reference, served) < 1e-4
    assert differences(with_adapter, served) < 1e-4
    assert differences(base, served) > 0.1


def test_a_merged_models_fidelity_is_stored_next_to_it(
    serving_installation: ServingInstallation, merged: BaseModelEntry
) -> None:
    assert merged.merged_from
    folder = serving_installation.storage.root / "models" / merged.merged_from.digest
    measured = MergeFidelity.model_validate_json((folder / FIDELITY_NAME).read_bytes())
    assert measured.model_digest == folder.name
    assert measured.passed and measured.adapter_divergence.mean_kl_nats < 1e-6 < measured.effect.mean_kl_nats
