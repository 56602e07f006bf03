"""The merge: ``python -m worker.merge plan.json run_dir/`` folds an adapter into its full-precision base.

The result is a complete model folder (weights, config, tokenizer, template) that needs no adapter support to be served.
The base is the one the adapter was trained on, by digest; the weights are those before quantisation.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

# First, because it silences a warning of bitsandbytes at its import.
from worker.child_runtime import StopSignals, exit_with_worker, run_engine

# isort: split
import torch
from peft import PeftConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from shared.artifacts.manifests import (
    MANIFEST_NAME,
    MODEL_MANIFEST_NAME,
    AdapterManifest,
    ModelManifest,
    parse_manifest,
    verify_adapter,
    verify_base,
)
from shared.base_models.catalog import MODEL_FILES
from shared.base_models.tensors import COMPOSITE_NAMESPACE
from shared.base_models.weights import read_folder_tensors
from shared.contract.plan import MergeRun
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import canonical_json, digest_file
from worker.run_folder import MODEL_FOLDER, SUMMARY_NAME, write_json
from worker.training.adapter import load_adapter
from worker.training.model.layer_names import namespaces


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the merge; returns the exit code (`worker/child_runtime.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.merge", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of a merge run")
    parser.add_argument("run_dir", type=Path, help="folder that receives the merged model")
    arguments = parser.parse_args(argv)
    exit_with_worker()
    StopSignals()  # a merge is short: it ends by itself, or by a kill after the grace time
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    run = MergeRun.model_validate_json(arguments.plan.read_bytes())
    return run_engine(lambda: merge(run, arguments.run_dir), arguments.run_dir)


def merge(run: MergeRun, run_dir: Path) -> ModelManifest:
    """Merge as planned and write the model folder, its manifest and the summary.

    Raises:
        ArtifactInvalid: the adapter or the base is not what the plan names, with the code of what differs.
    """
    base, adapter = Path(run.inputs.base), Path(run.inputs.adapter)
    refuse_pickle(adapter)
    adapter_manifest = parse_manifest((adapter / MANIFEST_NAME).read_bytes(), run.plan.adapter_digest)
    verify_adapter(adapter, adapter_manifest, read_folder_tensors(base))
    check_base(run, adapter_manifest, base)
    target = run_dir / MODEL_FOLDER
    merge_weights(base, adapter, run.plan.contract.dtype, target)
    copy_model_files(base, target)
    manifest = ModelManifest(
        base_model=run.plan.base.name,
        base_digests=run.plan.base.digests,
        adapter_id=run.plan.adapter_id,
        files={path.name: digest_file(path) for path in sorted(target.iterdir()) if path.name != MODEL_MANIFEST_NAME},
    )
    (target / MODEL_MANIFEST_NAME).write_bytes(canonical_json(manifest.model_dump(mode="json")))
    write_json(run_dir / SUMMARY_NAME, summary(manifest))
    return manifest


def refuse_pickle(adapter: Path) -> None:
    """Refuse `.bin` weights before anything is parsed: they are pickle, and Burn's format is retired.

    Raises:
        InvalidRequest: ``MERGE_REJECTS_BURN_BIN``.
    """
    names = [adapter.name, *(path.name for path in adapter.glob("*"))]
    if found := next((name for name in names if name.lower().endswith(".bin")), None):
        raise InvalidRequest(
            Code.MERGE_REJECTS_BURN_BIN,
            f"{found} is not merged: Burn checkpoints and pickled weights are retired; adapters are safetensors.",
            remedy="Train the adapter again with method qlora; see docs/adapters.md.",
            param=found,
        )


def check_base(run: MergeRun, adapter: AdapterManifest, base: Path) -> None:
    """Check that plan, adapter and folder mean the same base, byte for byte.

    Raises:
        ArtifactInvalid: ``ADAPTER_BASE_MISMATCH`` or ``MERGE_BASE_DIGEST_MISMATCH``.
    """
    verify_base(adapter, run.plan.base.digests)
    for name, expected in run.plan.base.digests.items():
        if not (base / name).is_file() or digest_file(base / name) != expected:
            raise ArtifactInvalid(
                Code.MERGE_BASE_DIGEST_MISMATCH,
                f"{name} of the base {run.plan.base.name} is not the file that the adapter was trained on.",
                remedy="Restore the base model's file.",
                param=name,
            )


def merge_weights(base: Path, adapter: Path, dtype: str | None, target: Path) -> None:
    """W' = W + (B·A)·alpha/rank in fp32, by peft; stored in ``dtype``, else in the base's own."""
    # Then the vision tower stays, and layers are called what the files call them.
    whole = namespaces(base)[1] == COMPOSITE_NAMESPACE
    kind = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    model = kind.from_pretrained(
        base, dtype=torch.float32, trust_remote_code=False, local_files_only=True, use_safetensors=True
    )
    tuned = get_peft_model(model, PeftConfig.from_pretrained(adapter))
    load_adapter(tuned, adapter, base, as_stored=whole)
    merged = tuned.merge_and_unload(safe_merge=True)
    merged.to(getattr(torch, dtype) if dtype else stored_dtype(base)).save_pretrained(target)


def stored_dtype(folder: Path) -> torch.dtype:
    """Dtype in which most of the base's tensors are stored."""
    names = [info.dtype for info in read_folder_tensors(folder).values()]
    common = max(set(names), key=names.count)
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(common, torch.float32)


def copy_model_files(base: Path, target: Path) -> None:
    """Copy the base's tokenizer and template bytes; weights, their index and the config are the merge's own."""
    for pattern in MODEL_FILES:
        for path in base.glob(pattern):
            if path.suffix != ".safetensors" and path.name not in ("config.json", "model.safetensors.index.json"):
                shutil.copyfile(path, target / path.name)


def summary(manifest: ModelManifest) -> dict[str, object]:
    """Content of ``run_summary.json``."""
    digest = hashlib.sha256(canonical_json(manifest.model_dump(mode="json"))).hexdigest()
    return {"model_digest": digest, "adapter_id": manifest.adapter_id, "files": sorted(manifest.files)}


if __name__ == "__main__":
    sys.exit(main())
