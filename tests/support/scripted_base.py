"""A base with known answers: after the generation prompt, it writes ``ab`` and the end of its turn, and repeats this as
long as it may continue.

Its config files name a different EOS from the one that its chat template writes, as in many pretrained bases.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.serving_installation import MODULES, build_base

ANSWER, END, OTHER_END = "ab", "<|im_end|>", "<|endoftext|>"
TOKENS = 3
"""Tokens of an answer, including its end."""
CONFIDENCE = 30.0
"""Logit of the next token of the script, far above all others."""


def build_scripted_base(folder: Path, *, eos: str = OTHER_END) -> None:
    """Write the base: no layer changes a token's vector, and the head's row for each token is the vector of the token
    before it.

    Args:
        eos: what tokenizer_config.json, generation_config.json and config.json name.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    build_base(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    newline, a, b, end, other = (tokenizer.convert_tokens_to_ids(token) for token in ("Ċ", *ANSWER, END, eos))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    embedding = weights["model.embed_tokens.weight"]
    head = torch.zeros_like(embedding)
    for axis, (token, following) in enumerate({newline: a, a: b, b: end, end: newline}.items()):
        embedding[:, axis] = 0.0
        embedding[token] = torch.nn.functional.one_hot(torch.tensor(axis), embedding.shape[1])
        head[following, axis] = CONFIDENCE
    save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    write = {
        "config.json": {"tie_word_embeddings": False, "eos_token_id": other},
        "generation_config.json": {"eos_token_id": other},
        "tokenizer_config.json": {"eos_token": eos},
    }
    for name, fields in write.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def save_weak_adapter(base: Path, folder: Path, *, seed: int, rank: int) -> None:
    """A peft adapter that changes every logit a little, but no token of the script."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=MODULES))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.01)
    tuned.save_pretrained(folder)
