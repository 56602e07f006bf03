"""A patch of vLLM's generation config: answers also end at the tokens of ``--override-generation-config``.

The option has the form ``'{"eos_token_id": […]}'``. vLLM (0.32) reads sampling values from it but ignores the end
tokens in it, so an answer ends only at the end tokens of the base's config files. The patch changes the one place from
which all routes get the end tokens. So the additional tokens behave like the base's own: they also end grammars, count
for `min_tokens` and respect `ignore_eos`.
"""

from __future__ import annotations

from typing import Any

from vllm.config import ModelConfig

EOS = "eos_token_id"


def apply_patch() -> None:
    """Make vLLM end answers at the tokens of the option. The patch is needed in the server's process, which completes
    each request's sampling values. Idempotent.
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
    """Return the end token ids of a generation config, which may name one id, a list of ids or none."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)
