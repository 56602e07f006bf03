"""A patch of vLLM's generation config: every answer ends at the tokens of ``--override-generation-config '{"eos_token_id": […]}'`` too.

vLLM takes sampling values out of that option and ignores its EOS (0.32), so an answer ends only where the base's config files say. What
is patched is the one place from which all routes have these ids; so they end grammars, count for `min_tokens` and yield to `ignore_eos` as
the base's own do.
"""

from __future__ import annotations

from typing import Any

from vllm.config import ModelConfig

EOS = "eos_token_id"


def apply_patch() -> None:
    """Make vLLM stop at them, in this process: the server's, which completes the sampling values of each request. Idempotent."""
    read = ModelConfig.try_get_generation_config
    if getattr(read, "adds_end_tokens", False):
        return

    def read_with_end_tokens(config: ModelConfig) -> dict[str, Any]:
        fields: dict[str, Any] = read(config)
        more = config.override_generation_config.get(EOS)
        return fields if more is None else fields | {EOS: sorted(_ids(fields.get(EOS)) | _ids(more))}

    read_with_end_tokens.adds_end_tokens = True  # type: ignore[attr-defined]
    ModelConfig.try_get_generation_config = read_with_end_tokens


def _ids(value: Any) -> set[int]:
    """One id, several or none, as generation configs have them."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)
