"""Adapters are loaded during other requests, more than there are slots: no response is lost or comes from another
adapter.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx

ADAPTERS, AT_ONCE, TOKENS = 7, 6, 12
PROMPT = "the red fox"


def generate(client: httpx.Client, model: str) -> tuple[int, ...]:
    """The token ids that a model generates after the prompt, always the same number."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    response = client.post("/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True})
    assert response.status_code == 200, response.text
    return tuple(response.json()["choices"][0]["token_ids"])


def test_concurrent_loads_disturb_no_response(client, serving_installation):
    """One adapter responds without a pause while the others get their first requests, all at once, twice."""
    busy, *others = [
        serving_installation.publish(f"marker{seed}", seed=100 + seed).adapter_id for seed in range(ADAPTERS)
    ]
    loaded = Event()

    def without_pause() -> list[tuple[int, ...]]:
        generated = [generate(client, busy)]
        while not loaded.is_set():
            generated.append(generate(client, busy))
        return generated

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        running = pool.submit(without_pause)
        try:
            found = list(pool.map(lambda model: (model, generate(client, model)), [*others, *others[::-1]]))
        finally:
            loaded.set()
        meanwhile = running.result()

    alone = {model: generate(client, model) for model in [busy, *others]}
    assert len(set(alone.values())) == ADAPTERS, "each adapter generates something of its own"
    assert set(meanwhile) == {alone[busy]}
    assert {(model, tokens) for model, tokens in found if tokens != alone[model]} == set()
    assert client.get("/health").status_code == 200
