"""A patch of vLLM's generation config: answers also end at the tokens of ``--override-generation-config``.

The option has the form ``'{"eos_token_id": […]}'``. vLLM reads sampling values from it and ignores its EOS (0.32), so
an answer ends only at the end tokens of the base's config files. The patch changes the one place from which all routes
get these ids; so they end grammars, count for `min_tokens` and respect `ignore_eos` like the base's own end tokens.
"""

from __future__ import annotations

from typing import Any

from vllm.config import ModelConfig

EOS = "eos_token_id"


def apply_patch() -> None:
    """Make vLLM stop at these tokens. The patch belongs in the server's process, which completes each request's
    sampling values. Idempotent.
    """
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
    """Return the end token ids of a generation config, which may have one id, several or none."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)
