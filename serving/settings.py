"""Settings of one serving replica, from the environment (prefix ``MENS_``)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from shared.errors import Code, InvalidRequest
from shared.settings import Settings

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The only values that vLLM takes as its largest rank."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class ServingSettings(Settings):
    """What one replica serves, and with which limits."""

    serving_host: str = Field("127.0.0.1", description="Address to listen on; any but loopback needs a serving key.")
    serving_port: int = Field(8001, ge=1, le=65535, description="Port to listen on.")
    serving_base: str = Field("", validate_default=True, description="Catalogue name of the base model.")
    serving_base_digest: str | None = Field(
        None, description="Digest that the base must have; `python -m serving` hands vLLM the one it verified."
    )
    serving_device: Literal["cpu", "cuda"] = Field("cpu", description="cpu or cuda.")
    serving_dtype: Literal["auto", "float32", "bfloat16"] | None = Field(
        None, description="Weights in memory; null: float32 on a CPU, the model's own on a GPU."
    )
    serving_cpu_threads: int = Field(1, ge=1, description="Threads on a CPU; more slow a tiny model down.")
    serving_max_loras: int = Field(4, ge=1, description="Different adapters in one batch.")
    serving_max_cpu_loras: int = Field(64, ge=1, description="Adapters kept in memory.")
    serving_max_lora_rank: int = Field(16, ge=1, le=LORA_RANKS[-1], description="Rounded up to what vLLM takes.")
    serving_max_model_len: int | None = Field(None, ge=1, description="Context length; null: the model's own.")
    serving_kv_cache_bytes: int | None = Field(
        None, ge=1 << 20, description="KV cache; null: 64 MiB on a CPU, what vLLM finds free on a GPU."
    )
    serving_tensor_parallel: int = Field(1, ge=1, description="GPUs that share one model.")

    @property
    def serving_cache_dir(self) -> Path:
        """Verified copies of adapters, one folder per manifest digest."""
        return self.home / "serving-cache"

    @field_validator("serving_base")
    @classmethod
    def _base_is_named(cls, value: str) -> str:
        if not value:
            raise ValueError("it must name a base model of the catalogue")
        return value

    @field_validator("serving_max_lora_rank")
    @classmethod
    def _round_rank_up(cls, value: int) -> int:
        return next(rank for rank in LORA_RANKS if rank >= value)

    @model_validator(mode="after")
    def _values_agree(self) -> ServingSettings:
        if self.serving_max_cpu_loras < self.serving_max_loras:
            raise ValueError("serving_max_cpu_loras is smaller than serving_max_loras")
        if self.serving_device == "cpu" and self.serving_tensor_parallel > 1:
            raise ValueError("serving_tensor_parallel needs serving_device=cuda")
        if self.serving_host not in LOOPBACK_HOSTS and not self.serving_key.get_secret_value():
            raise ValueError("serving_host is not loopback, so serving_key must be set")
        return self


def load_settings() -> ServingSettings:
    """Read the environment.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID`` naming the first variable that is wrong.
    """
    try:
        return ServingSettings()
    except ValidationError as error:
        # Never the input itself: it may be the key.
        fault = error.errors(include_input=False, include_url=False)[0]
        variable = "_".join(["MENS", *(str(part).upper() for part in fault["loc"])])
        reason = fault["msg"].removeprefix("Value error, ")
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"{variable if fault['loc'] else 'The settings'}: {reason}.",
            remedy="Set the environment variable and start again.",
            param=variable if fault["loc"] else None,
        ) from None
