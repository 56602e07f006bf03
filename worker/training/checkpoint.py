"""Checkpoints: everything a run needs to go on as if it had never stopped, without pickle.

    checkpoints/step-00000120/  adapter_model.safetensors  adapter_config.json  adapter_manifest.json   (servable)
                                trainer_state.safetensors  (AdamW moments, RNG states)
                                trainer_state.json         (step, plan digest, metrics; written last inside)

A checkpoint is written beside its place and renamed, so one that can be seen is complete. The last few are kept.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from shared.errors import Code, JobFailed
from shared.manifest import WEIGHTS_NAME
from shared.planner import ExecutionPlan
from worker.rundir import CHECKPOINTS_FOLDER, list_checkpoints, write_json
from worker.training.adapter import save_adapter
from worker.training.model import trainable

SCHEMA = "vox_mens_checkpoint_v1"
STATE_NAME = "trainer_state"
KEEP = 3


@dataclass(slots=True)
class Progress:
    """How far a run is. The data order is a function of seed and step, so the step is the cursor.

    Attributes:
        tokens_per_second: mean rate of this attempt, once it has ended; not part of a checkpoint.
    """

    step: int
    trained_tokens: int
    metrics: list[dict[str, float]]
    tokens_per_second: float | None = None


def save_checkpoint(
    run_dir: Path,
    plan: ExecutionPlan,
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> Path:
    """Write a checkpoint of a step that is done; older ones past ``KEEP`` are removed."""
    target = run_dir / CHECKPOINTS_FOLDER / f"step-{progress.step:08d}"
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    save_adapter(model, tokenizer, plan, progress.step, temporary)
    save_file(_tensors(model, optimizer), temporary / f"{STATE_NAME}.safetensors")
    write_json(temporary / f"{STATE_NAME}.json", _state(plan, progress))
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    for old in list_checkpoints(run_dir)[:-KEEP]:
        shutil.rmtree(old)
    return target


def load_checkpoint(folder: Path, plan: ExecutionPlan, model: PeftModel, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a run's state back into model, optimizer and random generators.

    Raises:
        JobFailed: ``CHECKPOINT_MISMATCH``: it was written for another plan.
    """
    state = json.loads((folder / f"{STATE_NAME}.json").read_text())
    if state["schema"] != SCHEMA or state["plan_digest"] != plan.digest:
        raise JobFailed(
            Code.CHECKPOINT_MISMATCH,
            f"The checkpoint {folder.name} was written for another plan.",
            remedy="Remove the run folder's checkpoints to start from the beginning.",
        )
    set_peft_model_state_dict(model, load_file(folder / WEIGHTS_NAME))
    tensors = load_file(folder / f"{STATE_NAME}.safetensors")
    _restore_optimizer(model, optimizer, tensors)
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    return Progress(state["step"], state["trained_tokens"], state["metrics"])


def _state(plan: ExecutionPlan, progress: Progress) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "plan_digest": plan.digest,
        "contract_digest": plan.contract_digest,
        "step": progress.step,
        "trained_tokens": progress.trained_tokens,
        "metrics": progress.metrics,
        "torch": torch.__version__,
    }


def _tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    for index, parameter in enumerate(trainable(model)):
        for name, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value).cpu().contiguous()
    return tensors


def _restore_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]
) -> None:
    for index, parameter in enumerate(trainable(model)):
        prefix = f"optimizer.{index}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            name: value if name == "step" else value.to(parameter.device) for name, value in state.items()
        }
