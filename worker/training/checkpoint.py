"""Checkpoints: all the state that a run needs to continue exactly where it stopped, without pickle.

    checkpoints/step-00000120/  adapter_model.safetensors  adapter_config.json  adapter_manifest.json   (servable)
                                trainer_state.safetensors  (optimizer state, states of all random generators)
                                reference.safetensors      (with preferences: the reference's scores)
                                probes.json                (to publish it during the run: its scores of the probes)
                                trainer_state.json         (step, plan digest, metrics; written last inside)

A checkpoint is written under a temporary name and renamed, so a visible one is complete. The checkpoints at the ends of
the last few epochs are kept (in a run of fewer epochs, some at other steps too), and always the newest checkpoint, to
resume from.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from shared.contract.plan import ExecutionPlan
from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from worker.checkpoints.folders import appearing_whole, link_or_copy, remove_whole
from worker.run_folder import (
    CHECKPOINTS_FOLDER,
    REFERENCE_NAME,
    checkpoint_name,
    list_checkpoints,
    read_json,
    write_json,
)
from worker.training.adapter import load_weights, save_adapter
from worker.training.distributed import DistributedContext
from worker.training.model.load import trainable
from worker.training.optimizer import optimizer_tensors, restore_optimizer
from worker.training.probes import write_probes
from worker.training.reproducibility import NOT_RECORDED, Guarantee, inexact_reasons

SCHEMA = "vox_mens_checkpoint_v2"
STATE_NAME = "trainer_state"
OPTIMIZER_PREFIX = "optimizer."
CARRIED = "carried"
ABSENT = "absent"
KEEP = 3
"""Number of checkpoints that belong to the result of a run."""
PROGRESS_FIELDS = (
    "step",
    "trained_tokens",
    "metrics",
    "run_id",
    "token_budget",
    "non_finite",
    "memory_retries",
    "resumed_from",
    "replay_epoch",
    "replay_reference",
    "replay_at_risk",
)


class Occasion(Enum):
    """Reason for writing a checkpoint."""

    EPOCH_END = "epoch_end"
    STEP = "step"
    """``exec.checkpoint_every``."""
    INTERIM = "interim"
    """Only to resume from: it is not part of the run's result."""


@dataclass(slots=True)
class Progress:
    """State of a run. The data order is a function of seed and step, so the step is the cursor.

    Attributes:
        trained_tokens: tokens so far, without padding.
        metrics: rows of `metrics.csv` so far.
        run_id: the same in all attempts at a run.
        token_budget: tokens of a micro-batch; smaller than planned once a step ran out of memory.
        non_finite: consecutive steps up to this one that changed nothing because loss or gradient was not finite.
        memory_retries: number of times that a step ran out of memory and was repeated in smaller micro-batches.
        resumed_from: steps at which earlier attempts were resumed.
        inexact_reasons: reasons why this run is not bit-exact, see
            :func:`worker.training.reproducibility.inexact_reasons`.
        replay_epoch: epoch whose rows at risk were chosen last; -1: none.
        replay_reference: loss of each watched row of the replay file before the first step.
        replay_at_risk: rows of that file that the epoch replays first.
        tokens_per_second: mean rate of this attempt, once it has ended; not part of a checkpoint.
        checkpointed_at: monotonic time of this attempt's last checkpoint, or of its start; not part of a checkpoint.
    """

    step: int
    trained_tokens: int
    metrics: list[dict[str, float]]
    run_id: str = ""
    token_budget: int = 0
    non_finite: int = 0
    memory_retries: int = 0
    resumed_from: list[int] = field(default_factory=list)
    inexact_reasons: list[str] = field(default_factory=list)
    replay_epoch: int = -1
    replay_reference: list[float] = field(default_factory=list)
    replay_at_risk: list[int] = field(default_factory=list)
    tokens_per_second: float | None = None
    checkpointed_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee on how this run compares with an equal one, and with one that was never interrupted."""
        return Guarantee.STATE_EXACT if self.inexact_reasons else Guarantee.BIT_EXACT

    def add_inexact_reasons(self, *reasons: str) -> None:
        """Note why the run is not bit-exact, each reason once."""
        self.inexact_reasons = sorted({*self.inexact_reasons, *reasons})


def save_checkpoint(
    run_dir: Path,
    plan: ExecutionPlan,
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    made_on: dict[str, str | int],
    base: Path,
    *,
    occasion: Occasion = Occasion.STEP,
    carried: Sequence[str] = (),
    probes: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Write a checkpoint of a completed step; remove others that are not part of the result so far.

    Args:
        made_on: environment that the bits of a step depend on, from
            :func:`worker.training.reproducibility.environment`.
        base: the base model's folder.
        carried: files of the run folder that a resumed run needs too.
        probes: the model's own scores at this step, with which the checkpoint is certified; None: it is not.
    """
    target = _folder(run_dir, progress.step)
    with appearing_whole(target) as temporary:
        for name in carried:
            link_or_copy(run_dir / name, temporary / name)
        digests = {name: digest_file(temporary / name) for name in carried}
        save_adapter(model, tokenizer, plan, progress.step, temporary, base, digests.get(REFERENCE_NAME))
        save_file(_tensors(model, optimizer), temporary / f"{STATE_NAME}.safetensors")
        if probes is not None:
            write_probes(temporary, probes)
        state = _state(plan, progress, made_on, occasion) | ({CARRIED: digests} if digests else {})
        write_json(temporary / f"{STATE_NAME}.json", state)
    # Removed only now that the new checkpoint is complete.
    _remove_others(run_dir, list_checkpoints(run_dir)[-1:])
    return target


def carried_digest(checkpoint: Path, name: str) -> str | None:
    """Return the recorded SHA-256 of a file that a checkpoint carries; None if it carries no such file."""
    state = read_json(checkpoint / f"{STATE_NAME}.json") or {}
    digest = state.get(CARRIED, {}).get(name)
    return None if digest is None else str(digest)


def occasion_of(checkpoint: Path) -> Occasion:
    """Return why a checkpoint was written; earlier releases noted only interim ones."""
    state = read_json(checkpoint / f"{STATE_NAME}.json") or {}
    noted = [occasion for occasion in (Occasion.INTERIM, Occasion.EPOCH_END) if state.get(occasion.value)]
    return noted[0] if noted else Occasion.STEP


def keep_result(run_dir: Path) -> None:
    """Remove the checkpoints of a complete run that were only needed for resuming."""
    _remove_others(run_dir, [])


def _remove_others(run_dir: Path, kept: list[Path]) -> None:
    """Remove all checkpoints except these and the last `KEEP`: the ends of epochs, then the newest other steps."""
    occasions = {folder: occasion_of(folder) for folder in list_checkpoints(run_dir)}
    ends = [folder for folder, occasion in occasions.items() if occasion is Occasion.EPOCH_END][-KEEP:]
    steps = [folder for folder, occasion in occasions.items() if occasion is Occasion.STEP]
    steps = steps[max(0, len(steps) - (KEEP - len(ends))) :]
    for folder in occasions.keys() - {*kept, *ends, *steps}:
        remove_whole(folder)


def checkpoint_at(run_dir: Path, step: int) -> Path | None:
    """Return the checkpoint of a step, or None if it does not exist."""
    folder = _folder(run_dir, step)
    return folder if folder.is_dir() else None


def _folder(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS_FOLDER / checkpoint_name(step)


def refuse_missing(distributed: DistributedContext, resume: Path | None) -> None:
    """Check that all processes resume from the same checkpoint, before any of them reads it. Each of several machines
    has its own folder.

    Raises:
        JobFailed: ``CHECKPOINT_MISSING``, in every process, with the names of the machines that lack it.
    """
    state = resume and resume / f"{STATE_NAME}.json"
    mine = digest_file(state) if state and state.is_file() else ABSENT
    notes = [note.partition(" ") for note in distributed.gather(f"{mine} {socket.gethostname()}")]
    digests = [digest for digest, _, _ in notes]
    first = next((digest for digest in digests if digest != ABSENT), None)
    if (resume is None and first is None) or (first is not None and digests == [first] * len(digests)):
        return
    lacking = [
        f"{host} (process {rank})"
        for rank, (digest, _, host) in enumerate(notes)
        if digest == ABSENT or digest != first
    ]
    name = resume.name if resume else "that the others resume from"
    raise JobFailed(
        Code.CHECKPOINT_MISSING,
        f"The checkpoint {name} is not on {', '.join(lacking)}, or differs there.",
        remedy=(
            "The worker fetches it again. By hand: copy the folder to every machine and start all with the same "
            "--resume."
        ),
        details={"processes": lacking},
        retryable=True,
    )


def load_checkpoint(
    folder: Path,
    plan: ExecutionPlan,
    model: PeftModel,
    optimizer: torch.optim.Optimizer,
    here: dict[str, str | int],
    base: Path,
) -> Progress:
    """Restore a run's state into model, optimizer and random generators.

    Args:
        here: this process's environment; if it differs from the environment in the checkpoint, the run is no longer
            bit-exact.
        base: the base model's folder.

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
    if load_weights(model, folder, base):
        raise JobFailed(
            Code.CHECKPOINT_MISMATCH,
            f"The layers that the checkpoint {folder.name} names are not those of this model.",
            remedy="Remove the run folder's checkpoints to start from the beginning.",
        )
    tensors = load_file(folder / f"{STATE_NAME}.safetensors")
    state_of_optimizer = {
        key.removeprefix(OPTIMIZER_PREFIX): value for key, value in tensors.items() if key.startswith(OPTIMIZER_PREFIX)
    }
    restore_optimizer(optimizer, trainable(model), state_of_optimizer)
    _restore_generators(tensors)
    # Checkpoints of earlier releases have no rows at risk.
    progress = Progress(**{name: state[name] for name in PROGRESS_FIELDS if name in state})
    if plan.replay and "replay_epoch" not in state:
        progress.add_inexact_reasons(NOT_RECORDED)
    progress.resumed_from = [*progress.resumed_from, progress.step]
    progress.add_inexact_reasons(*_recorded_reasons(state), *inexact_reasons(state["environment"], here))
    return progress


def _recorded_reasons(state: dict[str, Any]) -> list[str]:
    """Return the reasons of a checkpoint's run. Earlier releases stored only its guarantee."""
    exact = state["guarantee"] == Guarantee.BIT_EXACT
    return list(state.get("inexact_reasons", [] if exact else [NOT_RECORDED]))


def _state(
    plan: ExecutionPlan, progress: Progress, made_on: dict[str, str | int], occasion: Occasion
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "plan_digest": plan.digest,
        "contract_digest": plan.contract_digest,
        "environment": made_on,
        "guarantee": progress.guarantee,
        "inexact_reasons": progress.inexact_reasons,
        "written_at": int(time.time()),
        "interim": occasion is Occasion.INTERIM,
        "epoch_end": occasion is Occasion.EPOCH_END,
        **{name: getattr(progress, name) for name in PROGRESS_FIELDS},
    }


def _tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer_tensors(optimizer, trainable(model))
    return _generators() | {f"{OPTIMIZER_PREFIX}{name}": value for name, value in state.items()}


def _generators() -> dict[str, torch.Tensor]:
    """Return the states of every random generator: torch's draw dropout masks; Python's and NumPy's are for libraries
    that use them.
    """
    _, python, _ = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002  # the global one
    tensors = {
        "rng.cpu": torch.get_rng_state(),
        "rng.python": torch.tensor(python, dtype=torch.int64),
        "rng.numpy": torch.tensor([*numpy["state"]["key"].tolist(), numpy["state"]["pos"]], dtype=torch.int64),
    }
    if torch.cuda.is_initialized():  # a query would open a context, even for a run on the CPU
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    return tensors


def _restore_generators(tensors: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(tensors["rng.cpu"])
    random.setstate((3, tuple(tensors["rng.python"].tolist()), None))
    *numpy, position = tensors["rng.numpy"].tolist()
    np.random.set_state(("MT19937", np.array(numpy, dtype=np.uint32), position, 0, 0.0))  # noqa: NPY002
    if "rng.cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
