"""Adapters are loaded while others answer, more of them than there are slots: nobody gets another's answer, or none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ADAPTERS, AT_ONCE, TOKENS = 7, 6, 12
PROMPT = "the red fox"


@pytest.fixture(scope="module")
def client(vllm_server) -> Iterator[httpx.Client]:
    with vllm_server.client() as client:
        yield client


def answer(client: httpx.Client, model: str) -> tuple[int, ...]:
    """The token ids that a model writes after the prompt, always as many."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    response = client.post("/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True})
    assert response.status_code == 200, response.text
    return tuple(response.json()["choices"][0]["token_ids"])


def test_loads_beside_answers(client, lab):
    """One adapter answers without a pause while the others are asked for the first time, all at once, twice."""
    busy, *others = [lab.publish(f"marker{seed}", seed=100 + seed).adapter_id for seed in range(ADAPTERS)]
    loaded = Event()

    def without_pause() -> list[tuple[int, ...]]:
        answers = [answer(client, busy)]
        while not loaded.is_set():
            answers.append(answer(client, busy))
        return answers

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        running = pool.submit(without_pause)
        try:
            found = list(pool.map(lambda model: (model, answer(client, model)), [*others, *others[::-1]]))
        finally:
            loaded.set()
        under_way = running.result()

    alone = {model: answer(client, model) for model in [busy, *others]}
    assert len(set(alone.values())) == ADAPTERS, "each adapter has an answer of its own"
    assert set(under_way) == {alone[busy]}
    assert {(model, text) for model, text in found if text != alone[model]} == set()
    assert client.get("/health").status_code == 200
