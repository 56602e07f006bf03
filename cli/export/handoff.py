"""``external_serving_handoff_v1.json``: describes to another runtime how to serve the files next to it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.artifacts.manifests import WEIGHTS_NAME, AdapterManifest

HANDOFF_NAME = "external_serving_handoff_v1.json"
Text = Annotated[str, Field(min_length=1)]


class Backend(StrEnum):
    """Runtimes that a handoff can be for."""

    VLLM = "vllm"
    OLLAMA = "ollama"
    HF_TRANSFORMERS = "hf-transformers"
    OPENAI_COMPATIBLE = "openai-compatible"


class Handoff(BaseModel):
    """The original's schema: closed, with its names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    handoff_schema: Literal["vox_external_serving_handoff_v1"] = Field(
        "vox_external_serving_handoff_v1", alias="schema"
    )
    schema_version: Literal[1] = 1
    backend_family: Literal["vllm", "ollama", "hf-transformers", "openai-compatible", "other"]
    base_model: Text
    tokenizer_source: Text = Field(description="Source of the tokenizer and its chat template: the base.")
    artifact_dir: Text = Field(description="Folder of the adapter, relative to this file.")
    prompt_format: Text
    adapter_path: str | None = Field(None, description="Weights, relative to this file.")
    openai_base_url: str | None = None
    notes: str | None = None


def handoff_for(backend: Backend, manifest: AdapterManifest, url: str) -> Handoff:
    """Return the handoff of an adapter in the folder that the file is written into.

    Args:
        url: URL of the installation that serves it, for clients of OpenAI's API.
    """
    remote = backend is Backend.OPENAI_COMPATIBLE
    return Handoff(
        backend_family=backend.value,
        base_model=manifest.base_model,
        tokenizer_source=manifest.base_model,
        artifact_dir=".",
        prompt_format=f"chat_template sha256:{manifest.template_digest}",
        adapter_path=None if remote else WEIGHTS_NAME,
        openai_base_url=f"{url}/v1" if remote else None,
        notes=_notes(backend, manifest),
    )


def _notes(backend: Backend, manifest: AdapterManifest) -> str:
    name = manifest.name
    arguments = json.dumps(dict(manifest.template_arguments or {}))
    match backend:
        case Backend.VLLM:
            default = f"--default-chat-template-kwargs '{arguments}' " if manifest.template_arguments else ""
            return (
                f"vllm serve BASE --enable-lora --max-lora-rank {_rank_of_vllm(manifest.rank)} --lora-modules {name}=. {default}"
                f"(BASE: a folder or hub name of {manifest.base_model}); requests then name the model {name}."
            )
        case Backend.OLLAMA:
            return f"ollama create {name.lower()} -f Modelfile; then ollama run {name.lower()}."
        case Backend.HF_TRANSFORMERS:
            return (
                "peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(BASE), '.') "
                f"(BASE: a folder or hub name of {manifest.base_model})."
                + (f" Chats: apply_chat_template(messages, **{arguments})." if manifest.template_arguments else "")
            )
        case _:
            return f"Requests name the model {manifest.adapter_id}; the API key is a key of this installation."


def _rank_of_vllm(rank: int) -> int:
    """Return the smallest maximum rank that vLLM accepts and that covers this rank."""
    return next((maximum for maximum in (8, 16, 32, 64, 128, 256, 320, 512) if maximum >= rank), rank)
