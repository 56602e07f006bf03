"""Measurements of ``python -m bench.merge``: each variant of a merge, and the comparison after it.

python -m bench.merging.merge_variants VARIANT FOLDER     merges FOLDER/base and FOLDER/adapter, prints one line of JSON
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from bench.harness.peak_memory import peak_bytes
from bench.merging.made_manifest import made_manifest
from bench.merging.merge_inputs import ALPHA, RANK
from shared.base_models.config import parse_model_config
from shared.base_models.tensors import lora_modules
from worker.merging import fidelity
from worker.merging.model_folder import FolderMerge
from worker.probe_chats import CHATS


def merge_mens(folder: Path, target: Path) -> None:
    """Merge with the product's engine, in the base's dtype."""
    config = parse_model_config(json.loads((folder / "base" / "config.json").read_text()))
    keys = [f"{module}.weight" for module in lora_modules(config)]
    manifest = made_manifest(keys, vocab=config.vocab, d_model=config.hidden, rank=RANK, alpha=ALPHA)
    FolderMerge(folder / "base", folder / "adapter", manifest, target).run("")


def merge_peft(folder: Path, target: Path, dtype: torch.dtype) -> None:
    """Merge with peft in a dtype, and store the result in the base's dtype."""
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    merged = PeftModel.from_pretrained(model, folder / "adapter").merge_and_unload(safe_merge=True)
    merged.to(torch.bfloat16).save_pretrained(target)


def compare_fidelity(folder: Path, _target: Path) -> None:
    """Compare the product's merged model with base and adapter, as each merge job does before its model counts."""
    random = torch.Generator().manual_seed(2)
    vocabulary = json.loads((folder / "base" / "config.json").read_text())["vocab_size"]
    probes = torch.randint(vocabulary, (len(CHATS), fidelity.MAX_TOKENS), generator=random).tolist()
    measured = fidelity.compare(
        folder / "mens",
        folder / "base",
        folder / "adapter",
        under_adapter=frozenset(),
        trained=None,
        double_quant=True,
        probes=probes,
    )
    if not measured.adapter.mean_kl_nats < fidelity.LIMITS["bfloat16"]:
        raise SystemExit(f"the merged model is {measured.adapter.mean_kl_nats} nats from base and adapter")


VARIANTS: dict[str, Callable[[Path, Path], None]] = {
    "mens": merge_mens,
    "peft-f32": lambda folder, target: merge_peft(folder, target, torch.float32),
    "peft-bf16": lambda folder, target: merge_peft(folder, target, torch.bfloat16),
    "fidelity": compare_fidelity,
}


def main() -> int:
    """Merge once, and print the seconds and bytes that it took beyond the imports."""
    parser = argparse.ArgumentParser(prog="python -m bench.merging.merge_variants", description=__doc__)
    parser.add_argument("variant", choices=list(VARIANTS))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    before, used = peak_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    start, cpu = time.perf_counter(), used.ru_utime + used.ru_stime
    VARIANTS[arguments.variant](arguments.folder, arguments.folder / arguments.variant)
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    facts = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime - cpu, "bytes": peak_bytes() - before}
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
