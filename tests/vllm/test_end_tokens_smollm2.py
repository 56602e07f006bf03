"""SmolLM2 whose config files name a different end token from its template's: its answers end as with correct files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.scripted_base import save_weak_adapter
from tests.support.serving_installation import make_serving_installation
from tests.support.smollm2 import smollm2_folder
from tests.support.vllm_server import start_server

pytestmark = [pytest.mark.long, pytest.mark.network]
END, OTHER = "<|im_end|>", "<|endoftext|>"
QUESTIONS = ("What is the capital of France?", "Name a colour.", "Say hello.")
LIMIT = 48


def build_with_another_eos(folder: Path) -> None:
    """Copy the model, and name the other token in each file that names an EOS."""
    shutil.copytree(smollm2_folder(), folder)
    other = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    number = next(token["id"] for token in other if token["content"] == OTHER)
    changes = {
        "tokenizer_config.json": {"eos_token": OTHER},
        "generation_config.json": {"eos_token_id": number},
        "config.json": {"eos_token_id": number},
    }
    for name, fields in changes.items():
        path = folder / name
        before = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(before | fields))


@pytest.mark.timeout(1200)
def test_answers_end_as_those_of_transformers_with_the_right_token(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder())
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32).eval()
    expected = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        end = tokenizer.convert_tokens_to_ids(END)
        written = model.generate(**ids, do_sample=False, max_new_tokens=LIMIT, eos_token_id=end)
        answer = written[0, ids["input_ids"].shape[1] :]
        reason = "stop" if answer[-1] == end else "length"
        expected.append((tokenizer.decode(answer, skip_special_tokens=True), reason, len(answer)))
    del model
    assert any(reason == "stop" for _, reason, _ in expected)
    installation = make_serving_installation(tmp_path, build_with_another_eos, save_weak_adapter)
    sizes = {"serving_kv_cache_bytes": 128 << 20, "serving_max_model_len": 512}
    with start_server(installation, **sizes) as server, server.client() as client:
        for question, (text, reason, tokens) in zip(QUESTIONS, expected, strict=True):
            body = {"model": installation.entry.name, "messages": [{"role": "user", "content": question}]}
            found = client.post("/v1/chat/completions", json=body | {"max_tokens": LIMIT, "temperature": 0}).json()
            (choice,) = found["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
            assert found["usage"]["completion_tokens"] == tokens
