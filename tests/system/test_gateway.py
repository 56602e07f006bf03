"""The gateway and the path of an adapter, with the real vLLM: equality, tampering, disconnects, merge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.waiting import eventually
from tests.system.loop import ANSWER, BASE, QUESTION, ROOT, Installation


@pytest.fixture(scope="module")
def alias(installation: Installation, tuned: dict[str, Any]) -> str:
    """An alias of the tuned model that no other file moves."""
    installation.call("PUT", "/v1/aliases/gateway", json={"adapter": tuned["result"]["adapter_id"]})
    return "gateway"


def serving(installation: Installation) -> httpx.Client:
    environment = installation.stack.settings
    headers = {"Authorization": f"Bearer {environment['MENS_SERVING_KEY']}"}
    return httpx.Client(base_url=environment["MENS_SERVING_URLS"], headers=headers, timeout=30)


def prompts() -> list[str]:
    rows = [json.loads(line) for line in (ROOT / "examples" / "support.validation.jsonl").read_text().splitlines()]
    return [row["messages"][0]["content"] for row in rows[:12]]


def test_certificate_is_stored(installation: Installation, tuned: dict[str, Any], alias: str) -> None:
    (adapter,) = installation.adapters_of(tuned)
    (certificate,) = adapter["certificates"].values()
    assert certificate["effect_rms_nats"] > 0.1
    assert certificate["noise_rms_nats"] < 1e-4
    assert installation.call("GET", f"/v1/adapters/{alias}")["id"] == adapter["id"]


def test_greedy_answers_equal_transformers_and_peft(
    installation: Installation, tuned: dict[str, Any], home: Path
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter_id = tuned["result"]["adapter_id"]
    base = home / "bases" / BASE
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, home / "storage" / "adapters" / adapter_id.partition("@")[2]).eval()
    equal = 0
    for prompt in prompts():
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**ids, max_new_tokens=48, do_sample=False)
        expected = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        equal += installation.ask(adapter_id, prompt) == expected
    assert equal == 12


def test_disconnect_stops_generation(installation: Installation) -> None:
    tokens, choices = 900, 16  # many seconds of work for the engine

    def complete(client: httpx.Client) -> None:
        body = {"model": BASE, "prompt": "Mens", "max_tokens": tokens, "n": choices, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_raw())

    before = installation.engine("generation_tokens_total")
    with installation.connection.client() as client:
        complete(client)
    eventually(lambda: not installation.engine("num_requests_running"), 60, "the engine has nothing to do")
    assert 1 <= installation.engine("generation_tokens_total") - before < tokens * choices


@pytest.fixture
def damaged(installation: Installation, tuned: dict[str, Any], home: Path) -> Iterator[str]:
    """The id of a published checkpoint that no replica has loaded, with one byte of its weights flipped."""
    adapter_id = str(tuned["result"]["adapters"][1])  # the first is asked by test_aliases.py
    folder = home / "storage" / "adapters" / adapter_id.partition("@")[2]
    weights = folder / "adapter_model.safetensors"
    backup = folder.with_name("backup")
    shutil.copy(weights, backup)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    yield adapter_id
    shutil.move(backup, weights)


def test_tampered_adapter_is_never_served(installation: Installation, damaged: str, alias: str) -> None:
    with serving(installation) as replica:
        verdict = replica.get(f"/mens/adapters/{damaged}")
    assert verdict.json()["error"]["code"] == "ADAPTER_DIGEST_MISMATCH"
    with installation.connection.client() as client:
        answer = client.post(
            "/v1/chat/completions", json={"model": damaged, "messages": [{"role": "user", "content": "?"}]}
        )
    assert (answer.status_code, answer.json()["error"]["mens"]["code"]) == (503, "SERVING_REFUSED")
    assert ANSWER in installation.ask(alias), "others go on"


@pytest.mark.long  # that such an adapter is found is in tests/vllm/test_certificates.py; what becomes of the job, in tests/worker/jobs/test_finetune.py
def test_adapter_without_effect_is_refused(installation: Installation) -> None:
    job_id = installation.train(name="idle", epochs=1, learning_rate=1e-12)
    job = installation.wait(job_id, lambda job: job["state"] in ("succeeded", "failed"))
    assert (job["state"], job["error"]["code"]) == ("failed", "ADAPTER_NO_EFFECT")
    (adapter,) = installation.adapters_of(job)
    assert (adapter["state"], adapter["published"]) == ("quarantined", False)
    assert adapter["id"] not in [model["id"] for model in installation.call("GET", "/v1/models")["data"]]


def test_unpublished_adapter_is_not_served(installation: Installation, resumed: dict[str, Any]) -> None:
    (adapter,) = installation.adapters_of(resumed)
    assert (adapter["published"], adapter["certificates"]) == (False, {})
    assert adapter["id"] not in [model["id"] for model in installation.call("GET", "/v1/models")["data"]]
    with installation.connection.client() as client:
        answer = client.post("/v1/completions", json={"model": adapter["id"], "prompt": "x"})
        assert answer.json()["error"]["mens"]["code"] == "MODEL_NOT_FOUND"
        moved = client.put("/v1/aliases/anything", json={"adapter_id": adapter["id"]})
        assert moved.json()["error"]["mens"]["code"] == "ADAPTER_NOT_SERVABLE"


def test_merged_model_gives_the_tuned_answer(installation: Installation, alias: str, home: Path) -> None:
    contract = {"adapter": alias}
    created = installation.call("POST", "/v1/jobs", json={"kind": "merge", "contract": contract})
    job = installation.wait_for_success(created["id"])
    folder = home / "storage" / "models" / job["result"]["model_digest"]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=48, do_sample=False)
    assert ANSWER in tokenizer.decode(out[0])


def test_replica_refuses_requests_without_its_key(installation: Installation) -> None:
    with serving(installation) as client:
        assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.post("/v1/load_lora_adapter", json={}).status_code == 404
