"""Adapters that cannot be confused with one another: each answers with its own four letters, whatever the request.

Each of the four letters depends on all tokens before it. So the exact text also shows whose keys and values the engine
used, and a single token shows whose weights it used.

This works as follows. The last layer's MLP gets neurons whose gate and up projections are both w·x, and for each of
them a second neuron with -w·x. Because silu(g)·g is never negative, such a pair gives about (w·x)² for every x, and the
down projection adds the embedding of one letter with this factor. It outweighs everything else, so the output is the
letter whose w matches x best.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from tests.support.serving_installation import MODULES, ServingInstallation, describe_adapter

LETTERS_EACH = 4
MOST = len(string.ascii_letters) // LETTERS_EACH
RANK = 8
GAIN, LOUDNESS = 10.0, 5.0
"""How far the own neurons stand out of the base's, and the letters out of the other tokens."""


@dataclass(frozen=True)
class Marker:
    """A marker adapter, stored but known to no ledger.

    Attributes:
        adapter_id: its id.
        letters: its own, and no other marker's.
        answers: prompt → what transformers and peft answer to it, greedily; one letter a token.
        scores: prompt → log-probabilities (nats) that they give its tokens, the first left out.
    """

    adapter_id: str
    letters: frozenset[str]
    answers: dict[str, str]
    scores: dict[str, list[float]]


def make_markers(installation: ServingInstallation, count: int, prompts: list[str], tokens: int) -> list[Marker]:
    """Build, query and store this many adapters; ``tokens`` is the length of the answers."""
    assert count <= MOST
    return [_make(installation, number, prompts, tokens) for number in range(count)]


def _make(installation: ServingInstallation, number: int, prompts: list[str], tokens: int) -> Marker:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(number)
    letters = string.ascii_letters[number * LETTERS_EACH :][:LETTERS_EACH]
    tokenizer = AutoTokenizer.from_pretrained(installation.base)
    model = AutoModelForCausalLM.from_pretrained(installation.base, dtype=torch.float32)
    tuned = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=MODULES))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1)
        embeddings = model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids(list(letters))]
        _mark(model.model.layers[-1].mlp, embeddings)
    name, folder = f"marker-{number}", installation.home / "made" / f"marker-{number}"
    tuned.save_pretrained(folder)
    manifest = installation.store_adapter(folder, describe_adapter(installation, folder, name, RANK))
    merged = tuned.merge_and_unload()  # which answers sooner
    answers = _answers(merged, tokenizer, prompts, tokens)
    scores = {prompt: _score(merged, tokenizer, prompt) for prompt in prompts}
    return Marker(manifest.adapter_id, frozenset(letters), answers, scores)


def _mark(mlp: Any, embeddings: Any) -> None:
    """Set the LoRA matrices of an MLP; ``embeddings`` are those of the letters."""
    import torch

    directions = torch.randn(RANK, mlp.gate_proj.in_features)
    for projection in (mlp.gate_proj, mlp.up_proj):
        a, b = _matrices(projection)
        a.copy_(directions)
        b.zero_()
        for at in range(RANK):
            b[at, at], b[RANK + at, at] = GAIN, -GAIN
    a, b = _matrices(mlp.down_proj)
    a.zero_()
    b.zero_()
    for at in range(RANK):
        a[at % LETTERS_EACH, at] = a[at % LETTERS_EACH, RANK + at] = 1
    b[:, :LETTERS_EACH] = (LOUDNESS * embeddings / (embeddings**2).sum(1, keepdim=True)).T


def _matrices(layer: Any) -> tuple[Any, Any]:
    return layer.lora_A["default"].weight, layer.lora_B["default"].weight


def _answers(model: Any, tokenizer: Any, prompts: list[str], tokens: int) -> dict[str, str]:
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**encoded, do_sample=False, max_new_tokens=tokens, eos_token_id=None)
    texts = tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :])
    return dict(zip(prompts, texts, strict=True))


def _score(model: Any, tokenizer: Any, prompt: str) -> list[float]:
    import torch

    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    found: list[float] = scores.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found
