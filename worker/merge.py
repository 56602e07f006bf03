"""The merge: ``python -m worker.merge plan.json run_dir/`` folds an adapter into its base (`worker/merging`).

With ``--base-shard FILE … --adapter FILE --meta FILE --output FILE`` it makes a merge in the original system's format
instead: an adapter in that layout becomes one file with only the merged tensors (`worker/merging/subset.py`).

The result is a complete model folder (weights, config, tokenizer, template) that needs no adapter support to be served.
The base is the one the adapter was trained on, by digest. The weights are those before quantisation, or, on request, the
dequantised ones that training computed with. The written model is then compared with base and adapter, and must agree
(`worker/merging/fidelity.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path

# Imported first, because it makes the import of the libraries faster.
import worker.libraries  # noqa: F401

# isort: split
from shared.artifacts.manifests import (
    MANIFEST_NAME,
    MODEL_MANIFEST_NAME,
    AdapterManifest,
    ModelManifest,
    parse_manifest,
    verify_adapter,
    verify_base,
)
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME, MergeFidelity, MergeProbes
from shared.artifacts.original_layout import refuse_bin
from shared.base_models.weights import read_folder_tensors
from shared.contract.choices import BaseQuant, BaseWeights
from shared.contract.plan import MergeRun
from shared.errors import ArtifactInvalid, Code, ContractRejected, JobFailed, MensError
from shared.hashing import digest_file, digest_json
from worker.child_runtime import EXIT_FAILED, StopSignals, exit_with_worker, run_engine
from worker.merging import fidelity
from worker.merging.model_folder import FolderMerge
from worker.merging.subset import SubsetMerge
from worker.run_folder import MODEL_FOLDER, SUMMARY_NAME, write_json
from worker.training.model.nf4 import has_transposed_layers, quantised_tensors
from worker.training.reporting.telemetry import Telemetry

ENGINE_VERSION = 2
"""Increase this when the same merge would give different bytes; unfinished output of an older release is then written
again.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of the merge; return the exit code (`worker/child_runtime.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.merge", description=__doc__)
    parser.add_argument("plan", type=Path, nargs="?", help="plan.json of a merge run")
    parser.add_argument("run_dir", type=Path, nargs="?", help="folder that receives the merged model")
    parser.add_argument(
        "--base-shard", type=Path, action="append", default=[], help="a safetensors file of the base; repeat"
    )
    parser.add_argument("--adapter", type=Path, help="the original's candle_qlora_adapter.safetensors")
    parser.add_argument("--meta", type=Path, help="its sidecar, version 2 or 3")
    parser.add_argument("--output", type=Path, help="file that receives the merged tensors")
    arguments = parser.parse_args(argv)
    exit_with_worker()
    if arguments.plan is None:
        if not (arguments.adapter and arguments.meta and arguments.output):
            parser.error("give a plan and a run folder, or --base-shard, --adapter, --meta and --output")
        return merge_subset(
            SubsetMerge(tuple(arguments.base_shard), arguments.adapter, arguments.meta, arguments.output)
        )
    if arguments.run_dir is None:
        parser.error("the run folder is missing: give a plan and a run folder")
    StopSignals()  # a merge is short: it ends on its own, or by a kill after the grace time
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    run = MergeRun.model_validate_json(arguments.plan.read_bytes())
    return run_engine(lambda: merge(run, arguments.run_dir), arguments.run_dir)


def merge_subset(work: SubsetMerge) -> int:
    """Run a subset merge; print the result, or the error, as JSON; return the exit code."""
    try:
        merged = work.run()
    except MensError as error:
        print(json.dumps(error.as_dict()))
        return EXIT_FAILED
    print(json.dumps(asdict(merged)))
    return 0


def merge(run: MergeRun, run_dir: Path) -> ModelManifest:
    """Merge as planned and write the model folder, its manifest, its fidelity and the summary.

    Raises:
        ArtifactInvalid: the adapter or the base differs from the plan; the code names the difference.
        JobFailed: ``MERGE_FIDELITY_FAILED``.
    """
    base, adapter = Path(run.inputs.base), Path(run.inputs.adapter)
    refuse_pickle(adapter)
    adapter_manifest = parse_manifest((adapter / MANIFEST_NAME).read_bytes(), run.plan.adapter_digest)
    verify_adapter(adapter, adapter_manifest, read_folder_tensors(base))
    check_base(run, adapter_manifest, base)
    fidelity.refuse_without_memory(base)
    target = run_dir / MODEL_FOLDER
    contract = run.plan.contract
    quantised = (
        training_weights(base, adapter_manifest) if contract.base_weights is BaseWeights.DEQUANT_NF4 else frozenset()
    )
    work = FolderMerge(
        base, adapter, adapter_manifest, target, contract.dtype, quantised, adapter_manifest.quant.double_quant
    )
    key = digest_json({"engine": ENGINE_VERSION, "plan": run.plan.model_dump(mode="json")})
    with Telemetry(run_dir, 0, []) as telemetry:
        files = work.run(key, lambda done, of: telemetry.emit("merge_shard", {"shard": done, "of": of}))
    manifest = ModelManifest(
        base_model=run.plan.base.name,
        base_digests=run.plan.base.digests,
        adapter_id=run.plan.adapter_id,
        base_weights=contract.base_weights,
        template_arguments=adapter_manifest.template_arguments,
        files=files,
    )
    (target / MODEL_MANIFEST_NAME).write_bytes(manifest.to_bytes())
    measured, probes = measure(run, adapter_manifest, manifest, target)
    write_json(target / FIDELITY_NAME, measured.model_dump(mode="json"))
    write_json(target / PROBES_NAME, probes.model_dump(mode="json"))
    refuse_unfaithful(measured)
    write_json(run_dir / SUMMARY_NAME, summary(manifest, measured))
    return manifest


def measure(
    run: MergeRun, adapter: AdapterManifest, merged: ModelManifest, folder: Path
) -> tuple[MergeFidelity, MergeProbes]:
    """Measure the distance of the merged folder from base + adapter and from the training weights; return it with the
    scores that the folder's replicas must reproduce.
    """
    base, contract = Path(run.inputs.base), run.plan.contract
    trained_on_nf4 = adapter.quant.base_quant is BaseQuant.NF4 and not has_transposed_layers(base)
    trained = quantised_tensors(base) if trained_on_nf4 else None
    compared = fidelity.compare(
        folder,
        base,
        Path(run.inputs.adapter),
        under_adapter=(trained or frozenset()) if contract.base_weights is BaseWeights.DEQUANT_NF4 else frozenset(),
        trained=trained,
        double_quant=adapter.quant.double_quant,
    )
    dtype = fidelity.coarsest_dtype(folder, adapter)
    fidelity_of_model = MergeFidelity(
        model_digest=merged.digest,
        dtype=dtype,
        base_weights=contract.base_weights,
        positions=compared.positions,
        adapter_divergence=compared.adapter,
        training_divergence=compared.training,
        effect=compared.effect,
        limit_nats=contract.max_kl_nats or fidelity.LIMITS[dtype],
    )
    return fidelity_of_model, MergeProbes(model_digest=merged.digest, probes=compared.probes)


def refuse_unfaithful(measured: MergeFidelity) -> None:
    """Refuse a merge whose model gives different outputs from base + adapter.

    Raises:
        JobFailed: ``MERGE_FIDELITY_FAILED``, with all numbers in its details.
    """
    if measured.passed:
        return
    raise JobFailed(
        Code.MERGE_FIDELITY_FAILED,
        f"The merged model is {measured.adapter_divergence.mean_kl_nats:.2e} nats (mean KL) from base + adapter;"
        f" the limit for {measured.dtype} is {measured.limit_nats:.0e}.",
        remedy="Merge with dtype float32, or raise max_kl_nats if the rounding of this dtype is acceptable.",
        param="max_kl_nats",
        details={"fidelity": measured.model_dump(mode="json")},
    )


def training_weights(base: Path, manifest: AdapterManifest) -> AbstractSet[str]:
    """Return the names of the weights that the adapter was trained over in NF4.

    Raises:
        ContractRejected: ``CONTRACT_UNSUPPORTED``: it was trained over full precision, or its base has no twin.
    """
    if manifest.quant.base_quant is not BaseQuant.NF4:
        raise ContractRejected(
            Code.CONTRACT_UNSUPPORTED,
            f"{manifest.name} was trained on full-precision weights, so it cannot be merged into dequantised ones.",
            remedy="Leave base_weights at original.",
            param="base_weights",
        )
    return quantised_tensors(base)


def refuse_pickle(adapter: Path) -> None:
    """Refuse `.bin` weights before anything is parsed: they are pickle, and Burn's format is retired."""
    for name in (adapter.name, *(path.name for path in adapter.glob("*"))):
        refuse_bin(name, name)


def check_base(run: MergeRun, adapter: AdapterManifest, base: Path) -> None:
    """Check that plan, adapter and folder refer to the same base, byte for byte.

    Raises:
        ArtifactInvalid: ``MERGE_BASE_DIGEST_MISMATCH``.
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


def summary(manifest: ModelManifest, measured: MergeFidelity) -> dict[str, object]:
    """Return the content of ``run_summary.json``."""
    return {
        "model_digest": manifest.digest,
        "adapter_id": manifest.adapter_id,
        "files": sorted(manifest.files),
        "fidelity": measured.model_dump(mode="json"),
    }


if __name__ == "__main__":
    sys.exit(main())
