"""Further flags of ``mens train`` and ``mens plan``: every flat name of a contract field, and the replacements of the
original's other flags.

``--qlora-ce-last-k 16 --curriculum --alpha=64`` are contract fields; a flag that is not a field reports its
replacement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from shared.contract.field_names import field_types, flat_names
from shared.contract.flat_keys import from_flat
from shared.errors import Code, ContractRejected

REPLACED = {
    "data_dir": "Pass the file itself: mens train FILE.",
    "output_dir": "The result is an adapter in storage: `mens models` lists it. Run folders are in MENS_RUNS_DIR.",
    "resume": "A job resumes automatically from its last checkpoint; resume a paused one with `mens jobs resume ID`.",
    "force_restart": "Leave it out: each new job starts from scratch; only attempts at the same job resume.",
    "data_mode": "Use --lenient to skip bad lines.",
    "fast_corpus": "Leave it out: Mens has no corpus step and trains on the file as it is.",
    "context_filter": "Set data.context_filter in a contract file and pass it with --contract.",
    "process_priority": "Start the worker with `nice`, or set MENS_TRAINER_THREADS.",
    "background": "Use --no-watch: the job runs on a worker in any case.",
    "log_dir": "Follow the job with `mens jobs watch ID --events`; the trainer's log is in its run folder.",
    "cloud": "Run workers where the GPUs are; deploy/helm has the chart.",
    "max_budget": "Leave it out: Mens rents no machines.",
    "train_data_hf": "Download the data set first and pass the file.",
    "adapter_upload_hf": "Upload the finished adapter with `mens adapter push`.",
    "max_runtime_secs": "Cancel a job with `mens jobs cancel ID`.",
    "persistent": "Leave it out: workers keep running between jobs.",
}
"""Flags of the original command that are not contract fields (mens-spec.md §14)."""


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the contract sections that further flags define.

    Raises:
        ContractRejected: ``CONTRACT_UNSUPPORTED`` for a flag that has a replacement; ``CONTRACT_INVALID`` or
            ``UNKNOWN_BACKEND`` for a flag that is not a field.
    """
    flat: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        flag, equals, text = waiting.pop(0).partition("=")
        if not flag.startswith("--"):
            raise ContractRejected(
                Code.CONTRACT_INVALID, f"{flag!r} is not a flag.", remedy="See mens train --help.", param=flag
            )
        name = flag.removeprefix("--").replace("-", "_")
        if name in REPLACED:
            raise ContractRejected(Code.CONTRACT_UNSUPPORTED, f"{flag} was removed.", remedy=REPLACED[name], param=flag)
        if not equals and waiting and not waiting[0].startswith("--"):
            equals, text = "=", waiting.pop(0)
        flat[name] = _value(text, field_types(name)) if equals else True
    try:
        return from_flat(flat)
    except ContractRejected as error:
        raise _of_option(error) from None


def _of_option(error: ContractRejected) -> ContractRejected:
    """Return an error about an unknown field in the words of options; other errors stay as they are."""
    name = str(error.param)
    if name in flat_names() or error.code is not Code.CONTRACT_INVALID:
        return error
    option = f"--{name.replace('_', '-')}"
    near = re.match(r"Did you mean (\w+)\?", error.remedy)
    remedy = f"Did you mean --{near[1].replace('_', '-')}?" if near else "`mens train --help` lists the options."
    return ContractRejected(error.code, f"The option {option} does not exist.", remedy=remedy, param=name)


def _value(text: str, types: frozenset[Any]) -> Any:
    """Parse the value of a field of these types: a string unchanged, comma-separated names as a list, everything else
    as JSON.
    """
    if str in types:
        return text
    try:
        return json.loads(f"0{text}" if text.startswith(".") else text, parse_constant=str)
    except ValueError:
        return text.split(",") if tuple in types else text
