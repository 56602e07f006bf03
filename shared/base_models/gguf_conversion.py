"""Decide whether transformers converts a GGUF file correctly; refuse other files."""

from __future__ import annotations

from pathlib import Path

from shared.base_models.gguf_file import GgufHeader, unsupported
from shared.errors import ArtifactInvalid, Code

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""``general.architecture`` of files whose conversion is compared with the model that they were made from
(`tests/worker/bases/test_gguf_base.py`). Mistral's files name ``llama``, whose tensors they have.
"""
ROPE_FACTORS = "rope_freqs.weight"
MERGED_WHOLE = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
"""Pre-tokenizers that use a whole piece as one token if it is in the vocabulary, whatever the merges say."""
NORMALISED = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Pre-tokenizers of models whose tokenizer first composes characters, which the format does not record."""
KNOWN_SPLITS = MERGED_WHOLE | NORMALISED | {"gpt-2", "smollm"}


def check_convertible(path: Path, header: GgufHeader) -> None:
    """Refuse files that transformers would read without an error, but as a different model.

    Raises:
        ArtifactInvalid: ``MODEL_FAMILY_UNSUPPORTED`` or ``GGUF_UNSUPPORTED``.
    """
    architecture, metadata = header.architecture, header.metadata
    if architecture not in ARCHITECTURES:
        raise ArtifactInvalid(
            Code.MODEL_FAMILY_UNSUPPORTED,
            f"{path.name} is a model of the architecture {architecture[:80]!r}, which cannot be tuned here.",
            remedy=f"Choose a model with a supported architecture: {', '.join(sorted(ARCHITECTURES))}.",
            param="general.architecture",
        )
    if metadata.get(f"{architecture}.expert_count"):
        raise unsupported(path, "is a mixture of experts, which cannot be tuned here", "Choose a dense model.")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if ROPE_FACTORS in header.tensors or scaling != "none":
        raise unsupported(path, "scales its rotary frequencies, as Llama 3.1 does, which the conversion would lose")
    model, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model not in ("gpt2", "llama") or (model == "gpt2" and split not in KNOWN_SPLITS):
        raise unsupported(path, f"has a tokenizer that is not known here ({str(model)[:40]!r}, {str(split)[:40]!r})")
