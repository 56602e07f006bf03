"""Files of the run folder, by name: the child process writes them and the worker reads them. No torch, no queue.

plan.json  training-preflight.json                           before it runs
telemetry.jsonl  tensorboard/  engine.log  error.json         while it runs
first_process.pid  stop.json  ending.json                   with several processes: which to signal, whether a stop was
                                                             requested, how they ended
checkpoints/step-…/                                          to resume from
prepared/                                                    encoded data, when no cache is named
parent/                                                      copy of the adapter that the run continues from
adapter/ (or model/)  probes.json  metrics.csv               what was made
merge_progress.json                                          digests of a merge's whole shards
training_skip_stats.json  training_manifest.json  MODEL_CARD.md  loss.svg     what was done
self_evaluation.json                                         the adapter measured against its base
evaluation_rows.json                                         the rows of that evaluation, for publishing
run_summary.json                                             written last: it marks a complete run
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.contract.sections import DeviceSection
from shared.durable_files import write_durably

PLAN_NAME = "plan.json"
TELEMETRY_NAME = "telemetry.jsonl"
LOG_NAME = "engine.log"
LOG_BYTES = 1 << 16
"""Number of bytes at the end of an attempt's log that are stored with the job."""
PATH = re.compile(r"(?:file://|(?<![\w/.~-]))/(?:[^\s/:'\"<>|,;()]+/)+")
"""Matches the folders in front of a file's name."""
ERROR_NAME = "error.json"
FIRST_PROCESS_NAME = "first_process.pid"
STOP_NAME = "stop.json"
ENDING_NAME = "ending.json"
CHECKPOINTS_FOLDER = "checkpoints"
CHECKPOINT_STATE_NAME = "trainer_state.json"
ADAPTER_FOLDER = "adapter"
PARENT_FOLDER = "parent"
MODEL_FOLDER = "model"
MERGE_PROGRESS_NAME = "merge_progress.json"
PREPARED_FOLDER = "prepared"
PROBES_NAME = "probes.json"
DEPTHS = (256, 1024, 4096, 16_384, 65_536)
"""Ends of the ranges of positions that a certificate judges separately; the first range begins at 0."""
REFERENCE_NAME = "reference.safetensors"
PREFERENCE_METRICS = (
    "preference_loss",
    "sft_loss",
    "rewards_chosen",
    "rewards_rejected",
    "reward_margin",
    "reward_accuracy",
    "logps_chosen",
    "logps_rejected",
    "kl",
)
"""Means of a step by pair or rated answer, in the order of the columns of ``metrics.csv``."""
METRICS_NAME = "metrics.csv"
TRAINING_MANIFEST_NAME = "training_manifest.json"
PREFLIGHT_NAME = "training-preflight.json"
SUMMARY_NAME = "run_summary.json"
EVALUATION_NAME = "self_evaluation.json"
EVALUATION_ROWS_NAME = "evaluation_rows.json"


def write_json(path: Path, value: object) -> None:
    """Write JSON in one step: the file is complete or absent."""
    write_durably(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object that another process wrote, or None if the file does not exist."""
    if not path.is_file():
        return None
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def read_log_end(run_dir: Path) -> str:
    """Return the end of an attempt's log, in whole lines and without this machine's folders; empty if it has no log."""
    # An attempt that ends before its trainer starts has no log.
    with suppress(OSError), (run_dir / LOG_NAME).open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - LOG_BYTES)
        file.seek(start)
        text = file.read(LOG_BYTES).decode(errors="replace")
        return without_folders(text.partition("\n")[2] if start else text)
    return ""


def without_folders(text: str) -> str:
    """Return the text with the folders of every absolute path replaced by ``…/``."""
    return PATH.sub("…/", text)


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint folder of a step; names sort in the order of the steps."""
    return f"step-{step:08d}"


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the complete checkpoints of a run folder, oldest first."""
    return sorted((run_dir / CHECKPOINTS_FOLDER).glob("step-*"))


SCORES_NAME = "scores.json"


class TemplateCheck(BaseModel):
    """Plan of the process that compares an imported adapter's chat template with its base's.

    Attributes:
        base: the base's folder.
        template: file of the adapter's template.
        arguments: arguments of both templates.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    base: str
    template: str
    arguments: dict[str, Any] = {}


class ScoreRun(BaseModel):
    """Plan of the process that scores probes with an adapter on a full-precision base.

    Attributes:
        base: the base's folder.
        adapter: the adapter's folder.
        probes: the ``probes.json`` of its run.
        dtype: torch's name of the dtype to compute in: the one that is served.
        device: device that the contract requested for training.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    base: str
    adapter: str
    probes: str
    dtype: str
    device: DeviceSection
