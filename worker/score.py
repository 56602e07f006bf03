"""The scoring process: ``python -m worker.score plan.json run_dir/`` scores probes as the trainer does, for the
publisher.

transformers and peft compute on the same weights that are served, so the difference from a replica's scores is the
error of the serving engine. It is a separate process, because the publisher's never imports torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Imported first, because it makes the import of the libraries faster.
import worker.libraries  # noqa: F401

# isort: split
import torch
from peft import PeftConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from shared.errors import Code, JobFailed
from worker.child_runtime import StopSignals, exit_with_worker, is_out_of_memory, run_engine
from worker.run_folder import SCORES_NAME, ScoreRun, read_json, write_json
from worker.training.adapter import load_adapter
from worker.training.model.load import pick_device
from worker.training.probes import score_probes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of the scoring; return the exit code (`worker/child_runtime.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.score", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of a score run")
    parser.add_argument("run_dir", type=Path, help=f"folder that receives {SCORES_NAME}")
    arguments = parser.parse_args(argv)
    exit_with_worker()
    StopSignals()  # a few forward passes: they end on their own, or by a kill after the grace time
    run = ScoreRun.model_validate_json(arguments.plan.read_bytes())
    return run_engine(lambda: score(run, arguments.run_dir), arguments.run_dir)


def score(run: ScoreRun, run_dir: Path) -> None:
    """Score every probe and write the numbers.

    Raises:
        JobFailed: ``OUT_OF_MEMORY``: the base fitted in NF4, but does not fit in full precision.
    """
    probes = (read_json(Path(run.probes)) or {"probes": []})["probes"]
    device = pick_device(run.device)
    try:
        model = load(Path(run.base), Path(run.adapter), getattr(torch, run.dtype), device)
        write_json(run_dir / SCORES_NAME, {"scores": score_probes(model, probes, device)})
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise JobFailed(
            Code.OUT_OF_MEMORY,
            f"The base does not fit into this worker's memory in {run.dtype}, so the engine error cannot be measured.",
            remedy="Set MENS_PARITY=shift on the worker, or publish from a worker with more memory.",
        ) from error


def load(base: Path, adapter: Path, dtype: torch.dtype, device: torch.device) -> PeftModel:
    """Load the full-precision base with the adapter."""
    model = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=dtype,
        device_map={"": device},
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    )
    tuned = get_peft_model(model, PeftConfig.from_pretrained(adapter))
    assert isinstance(tuned, PeftModel)
    load_adapter(tuned, adapter, base)
    return tuned


if __name__ == "__main__":
    sys.exit(main())
