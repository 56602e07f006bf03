"""Installations that serve SmolLM2-135M-Instruct, for the tests on a real model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.standalone.stack import Stack, running_stack
from tests.support.smollm2 import smollm2_folder, smollm2_gguf
from tests.system.loop import Installation, mens

REAL = "smollm2"
SECONDS = 1200.0


def add_base(home: Path, *, from_gguf: bool = False) -> None:
    """Add SmolLM2 to the catalogue of an installation by the command line: its folder, or its GGUF file, which takes a
    minute to convert.
    """
    source = smollm2_gguf() if from_gguf else smollm2_folder()
    done = mens("base", "add", REAL, str(source), home=home, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def real_installation(home: Path, *, from_gguf: bool = False, **environment: str) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    add_base(home, from_gguf=from_gguf)
    settings = {"MENS_SAMPLE_ANSWERS": "0", "MENS_PUBLISH_TIMEOUT_SECONDS": "600"}
    with running_stack(Stack(home, REAL, environment=settings | environment)) as stack:
        yield Installation(stack)


def finish(installation: Installation, job_id: str) -> dict[str, Any]:
    """The job, once it has succeeded."""
    job = installation.wait(job_id, lambda job: job["state"] in ("succeeded", "failed", "cancelled"), SECONDS, every=1)
    assert job["state"] == "succeeded", (job["error"], [event["message"] for event in job["events"]])
    return job
