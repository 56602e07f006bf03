"""Settings of one serving replica, from the environment (prefix ``MENS_``)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shared.settings import Settings, read_settings

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The only values that vLLM accepts as its largest rank."""

Quantization = Literal["fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "mxfp8", "mxfp4"]
"""Formats to which vLLM can round full-precision weights while it loads them; mxfp4 has 4 bits."""

PARSER_NAME = r"^[a-z0-9][a-z0-9_.-]*$"
OFF = "off"
"""Parser name that disables parsing."""

GPU_ONLY = ("serving_tensor_parallel", "serving_pipeline_parallel", "serving_quantization")
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class ServingSettings(Settings):
    """Settings of one replica: its base, its limits, its engine."""

    serving_host: str = Field("127.0.0.1", description="Address to listen on; any but loopback needs a serving key.")
    serving_port: int = Field(8001, ge=1, le=65535, description="Port to listen on.")
    serving_base: str = Field("", validate_default=True, description="Catalogue name of the base model.")
    serving_base_digest: str | None = Field(
        None, description="Required digest of the base; `python -m serving` passes the verified one to vLLM."
    )
    serving_device: Literal["cpu", "cuda"] = Field("cpu", description="cpu or cuda.")
    serving_dtype: Literal["auto", "float32", "bfloat16"] | None = Field(
        None,
        description="Dtype of the weights in memory; null: float32 on a CPU (Qwen3.5: bfloat16), the model's own "
        "on a GPU.",
    )
    serving_quantization: Quantization | None = Field(
        None,
        description="Format that the weights are quantised to at the start, only on a GPU; null: they are not "
        "quantised.",
    )
    serving_cache_dir: Path = Field(
        Path(), validate_default=True, description="Verified copies of adapters; best on a disk of this machine."
    )
    serving_cache_bytes: int | None = Field(
        None,
        ge=0,
        description="Largest total size of these copies; the least recently requested ones are removed, and fetched "
        "again on request. Null: no limit.",
    )
    serving_trusted_keys: Path | None = Field(
        None,
        description="File of public keys, one per line; adapters and merged models without a signature by one of them are refused. Null: signatures are not required.",
    )
    serving_self_test_seconds: float = Field(
        10.0, gt=0, description="Seconds between two self-tests, in which a replica asks its engine for an answer."
    )
    serving_grammar_seconds: float = Field(
        3.0, gt=0, description="Processor time that one schema or grammar may take to compile."
    )
    serving_cpu_threads: int | None = Field(
        None,
        ge=1,
        description="Threads on a CPU; null: one for a tiny base, because more would slow it down; for other bases, "
        "chosen by the number of cores.",
    )
    serving_memory_bytes: int | None = Field(
        None,
        ge=1 << 28,
        description="Memory that a replica may use on a CPU; null: all memory of the machine or container.",
    )
    serving_max_loras: int = Field(4, ge=1, description="Different adapters in one batch.")
    serving_max_cpu_loras: int | None = Field(
        None, ge=1, description="Adapters kept in memory; null: as many as the memory for adapters holds."
    )
    serving_max_lora_rank: int | None = Field(
        None,
        ge=1,
        le=LORA_RANKS[-1],
        description="Rounded up to a rank that vLLM supports; null: the rank that this base's adapters need.",
    )
    serving_lora_memory_bytes: int | None = Field(
        None, ge=1 << 20, description="Memory for adapters; null: a quarter of what the replica may use."
    )
    serving_max_model_len: int | None = Field(
        None, ge=1, description="Context length; null: the model's own, on a CPU limited by the KV cache."
    )
    serving_kv_cache_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="KV cache; null: on a CPU 32,768 tokens, or fewer if memory is short; on a GPU the memory that vLLM finds free.",
    )
    serving_gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of a GPU's memory that vLLM takes; an explicit KV cache size takes precedence.",
    )
    serving_prefix_caching: bool = Field(True, description="Reuse the KV cache of common prefixes.")
    serving_tensor_parallel: int = Field(1, ge=1, description="Number of GPUs that share every layer.")
    serving_pipeline_parallel: int = Field(
        1, ge=1, description="Number of groups of GPUs that divide the layers between them."
    )
    serving_tool_parser: str | None = Field(
        None,
        pattern=PARSER_NAME,
        description="vLLM's parser of tool calls; null: chosen by the base's template; off: no parser.",
    )
    serving_reasoning_parser: str | None = Field(
        None,
        pattern=PARSER_NAME,
        description="vLLM's parser of reasoning; null: chosen by the base's template; off: no parser.",
    )

    @field_validator("serving_base")
    @classmethod
    def _require_base(cls, value: str) -> str:
        if not value:
            raise ValueError("it must name a base model of the catalogue")
        return value

    @field_validator("serving_cache_dir")
    @classmethod
    def _default_cache_dir(cls, value: Path, info: ValidationInfo) -> Path:
        return value if value != Path() else info.data["home"] / "serving-cache"

    @field_validator("serving_max_lora_rank")
    @classmethod
    def _round_rank_up(cls, value: int | None) -> int | None:
        return value if value is None else round_rank(value)

    @model_validator(mode="after")
    def _check_combinations(self) -> ServingSettings:
        kept = self.serving_max_cpu_loras
        if kept is not None and kept < self.serving_max_loras:
            raise ValueError("serving_max_cpu_loras is smaller than serving_max_loras")
        if self.serving_device == "cpu":
            for name in GPU_ONLY:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs serving_device=cuda")
        if self.serving_host not in LOOPBACK_HOSTS and not self.serving_key.get_secret_value():
            raise ValueError("serving_host is not loopback, so serving_key must be set")
        return self

    @property
    def adapts_head(self) -> bool:
        """Return true if the engine accepts adapters that change an untied ``lm_head``: only on a CPU, for the reason
        in `vllm_gpu_patch.py`.
        """
        return self.serving_device == "cpu"


def round_rank(rank: int) -> int:
    """Return the smallest rank limit of vLLM that is at least the given rank; the largest limit is 512."""
    return next(taken for taken in LORA_RANKS if taken >= rank)


def load_settings() -> ServingSettings:
    """Read the settings from the environment. Raises the errors of :func:`read_settings`."""
    return read_settings(ServingSettings)
