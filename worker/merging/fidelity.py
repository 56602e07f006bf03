"""Merge fidelity: the merged folder's logits compared with base + adapter, and with the training weights, over probe
chats.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.artifacts.manifests import AdapterManifest
from shared.artifacts.merge_fidelity import Divergence, MergeProbe
from shared.base_models.config import parse_model_config
from shared.base_models.weights import find_shards, read_folder_tensors, read_tensors
from shared.errors import Code, JobFailed
from shared.host import available_memory
from shared.tokenization.tokenizer import Tokenizer
from worker.merging.shards import TORCH_DTYPES
from worker.merging.streamed_model import FolderWeights, streamed_model
from worker.probe_chats import CHATS, UNICODE, encode_chats

BLOCK = re.compile(r"\.(\d+)\.")
"""Matches the block number in a tensor's name: the first number, because experts have numbers too."""
SMALL_BYTES = 256 << 20
MAX_TOKENS = 32
"""Number of tokens at the end of a probe that are used. With six probes and a vocabulary of 150,000 tokens, logits take
115 MB.
"""
LIMITS = {"float32": 1e-6, "float16": 1e-4, "bfloat16": 1e-2}
"""Largest mean KL (nats) by stored dtype: about 300 times the effect of rounding in a tiny model, but below any
adapter's effect. The reasons are in docs/decisions/0026.
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """Result of :func:`compare`; `shared/artifacts/merge_fidelity.py` documents the comparisons."""

    positions: int
    adapter: Divergence
    training: Divergence | None
    effect: Divergence
    probes: list[MergeProbe]


@torch.no_grad()
def compare(
    merged: Path,
    base: Path,
    adapter: Path,
    *,
    under_adapter: AbstractSet[str],
    trained: AbstractSet[str] | None,
    double_quant: bool,
    probes: Sequence[Sequence[int]] | None = None,
) -> Compared:
    """Compare the models' logits in float32; one block of one model, and two models' logits, are in memory at a time.

    Args:
        merged, base, adapter: the folders.
        under_adapter: names of the weights that the merge quantised to NF4 and back; empty: the base's own weights were
            used.
        trained: names of the weights that training quantised to NF4 and back; None: trained on full precision.
        double_quant: whether the scales of NF4's blocks are quantised too.
        probes: token ids, at most ``MAX_TOKENS`` each; None: the ends of the probe chats.
    """
    probes = probe_ids(base) if probes is None else probes

    def logits(folder: Path, quantised: AbstractSet[str], with_adapter: bool) -> list[torch.Tensor]:
        lora = adapter if with_adapter else None
        weights = FolderWeights(folder, lora, quantised, double_quant)
        return batch_logits(streamed_model(folder, weights, lora), probes)

    alone = logits(merged, frozenset(), False)
    tuned = logits(base, under_adapter, True)
    from_adapter = divergence(alone, tuned)
    training = from_adapter if trained is not None and trained == under_adapter else None
    if trained and training is None:
        training = divergence(alone, logits(base, trained, True))
    by_merged = token_scores(alone, probes)
    del alone
    plain = logits(base, under_adapter, False)
    recorded = [
        MergeProbe(token_ids=list(ids), positions=list(range(1, len(ids))), merged=merged_scores, base=base_scores)
        for ids, merged_scores, base_scores in zip(probes, by_merged, token_scores(plain, probes), strict=True)
        if len(ids) > 1
    ]
    return Compared(sum(map(len, probes)), from_adapter, training, divergence(plain, tuned), recorded)


def memory_needed(base: Path) -> int:
    """Return the peak memory in bytes that :func:`compare` needs in addition to the imports, whatever the number of layers.

    The sum of the weights, the logits of two models, the intermediates of their comparison, and small objects.
    Measured: 867 and 917 MB for a bound of 1,092 MB (a Qwen3 of 1.67 GB, bench/merge.py).
    """
    vocabulary = parse_model_config(json.loads((base / "config.json").read_bytes())).vocab
    logits = 4 * vocabulary * len(CHATS) * MAX_TOKENS
    return weights_needed(base) + 4 * logits + SMALL_BYTES


def weights_needed(base: Path) -> int:
    """Return the peak memory of the weights, in bytes: a block and the following matrix in float32, plus that matrix as
    stored or read a second time.
    """
    sizes = {name: 4 * math.prod(info.shape) for name, info in read_folder_tensors(base).items()}
    blocks: Counter[str] = Counter()
    for name, size in sizes.items():
        if match := BLOCK.search(name):
            blocks[match[1]] += size
    return max(blocks.values(), default=0) + 2 * max(sizes.values())


def refuse_without_memory(base: Path) -> None:
    """Refuse a comparison that does not fit into this machine's memory, before the merge starts.

    Raises:
        JobFailed: ``OUT_OF_MEMORY``, with the bytes needed and available.
    """
    needed, free = memory_needed(base), available_memory()
    if needed > free:
        raise JobFailed(
            Code.OUT_OF_MEMORY,
            f"Comparing the merged model with base + adapter takes up to {needed / 1e6:.0f} MB, and {free / 1e6:.0f} "
            "MB are free.",
            remedy="Merge on a worker with more memory, or when fewer jobs run on this one.",
            details={"needed_bytes": needed, "available_bytes": free},
        )


def probe_ids(base: Path) -> list[list[int]]:
    """Return token ids of the probe chats, encoded by the base's own tokenizer and template; only the ends of long
    ones.
    """
    tokenizer = Tokenizer.load(base)
    # Even if the template refuses every chat, the model can continue plain text.
    encoded = [ids for _, ids in encode_chats(tokenizer).chats] or [tokenizer.encode(UNICODE).ids]
    return [ids[-MAX_TOKENS:] for ids in encoded]


def batch_logits(model: torch.nn.Module, probes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return logits of each probe, [tokens, vocabulary], in one pass, because later tokens do not affect a position."""
    length = max(map(len, probes))
    ids = torch.tensor([[*probe, *[0] * (length - len(probe))] for probe in probes])
    batch = model(input_ids=ids, use_cache=False).logits.float()
    return [rows[: len(probe)] for rows, probe in zip(batch, probes, strict=True)]


def token_scores(logits: Sequence[torch.Tensor], probes: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability (nats) of each token of a probe except the first, given those before it."""
    return [
        [float(rows[at - 1].double().log_softmax(-1)[ids[at]]) for at in range(1, len(ids))]
        for rows, ids in zip(logits, probes, strict=True)
    ]


def divergence(reference: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> Divergence:
    """Return mean and largest KL(reference ‖ other) over the positions, and the largest logit difference."""
    kl, largest = [], 0.0
    for mine, theirs in zip(reference, other, strict=True):
        # Position by position: converted to float64 at once, the logits of one probe would need as much memory as all
        # probes need now.
        for left, right in zip(mine, theirs, strict=True):
            log_p, log_q = (logits.double().log_softmax(-1) for logits in (left, right))
            kl.append(float((log_p.exp() * (log_p - log_q)).sum()))
        largest = max(largest, float((mine - theirs).abs().max()))
    return Divergence(mean_kl_nats=sum(kl) / len(kl), max_kl_nats=max(kl), max_logit_difference=largest)


def coarsest_dtype(merged: Path, manifest: AdapterManifest) -> str:
    """Return torch's name of the coarsest dtype that a merged tensor is stored in."""
    keys = set(manifest.base_key_map.values())
    stored = {
        info.dtype for shard in find_shards(merged) for key, info in read_tensors(merged / shard).items() if key in keys
    }
    return str(max((TORCH_DTYPES[dtype] for dtype in stored), key=lambda dtype: torch.finfo(dtype).eps)).removeprefix(
        "torch."
    )
