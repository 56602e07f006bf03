"""The original's merge on this machine, without a server: the worker's program, and the handoff next to its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli.export.handoff import HANDOFF_NAME, Handoff
from shared.errors import Code, JobFailed, MensError

PROJECT = Path(__file__).resolve().parents[2]
NOTES = (
    "Only the tensors that the adapter changes, in float32: a server cannot load this file. Replace the base's tensors of the same"
    " names by them, or merge with `mens jobs merge ADAPTER`, which writes a complete model."
)


def merge_original(base_shards: list[Path], adapter: Path, meta: Path, output: Path) -> dict[str, Any]:
    """Merge into one file, and write the handoff; return the digest, the layers, and the skipped tensors.

    Raises:
        MensError: with the code of the fault (docs/errors.md, ``MERGE_…``).
    """
    shards = [part for shard in base_shards for part in ("--base-shard", str(shard))]
    # In a separate process, because the command line never imports torch.
    command = [sys.executable, "-m", "worker.merge", *shards, "--adapter", str(adapter), "--meta", str(meta)]
    done = subprocess.run(
        [*command, "--output", str(output)],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise JobFailed(
            Code.INTERNAL_ERROR,
            f"The merge ended with exit code {done.returncode} and no result.",
            remedy="See its output above.",
        ) from None
    if done.returncode:
        raise MensError(
            Code(result["code"]), result["message"], remedy=result.get("remedy", ""), param=result.get("param")
        )
    handoff = Handoff(
        backend_family="other",
        base_model=json.loads(meta.read_bytes()).get("base_model") or base_shards[0].resolve().parent.name,
        tokenizer_source=str(base_shards[0].resolve().parent),
        artifact_dir=".",
        prompt_format="chat template of the base",
        adapter_path=output.name,
        notes=NOTES,
    )
    (output.parent / HANDOFF_NAME).write_text(handoff.model_dump_json(by_alias=True, indent=2) + "\n")
    return result
