"""Bases for the benches that need an installation: a new tiny base, and SmolLM2-135M-Instruct."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.harness.processes import variant_processes
from bench.harness.smollm2 import SMOLLM2, smollm2_folder
from cli.standalone.smollm2 import LICENSE
from shared.base_models.catalog import LocalSource
from shared.settings import Settings

TINY = "mens-tiny"
BASES = {"tiny": TINY, "smollm2": SMOLLM2}
"""Names in the catalogue, by value of the option `--base`."""
SMOKE_STEPS = 1


def add_base(settings: Settings, base: str, *, smoke: bool) -> None:
    """Put one of ``BASES`` into the catalogue.

    The tiny one is built as `mens base build` does; in a smoke run, with one step and in a fork.
    """
    from cli.commands.bases.tiny import CORPUS, build
    from cli.standalone.base_sources import add

    if base == SMOLLM2:
        add(settings, base, LocalSource(path=str(smollm2_folder())), LICENSE)
        return
    if smoke:
        python, folder = Path(sys.executable), settings.home / "bases" / base
        folder.parent.mkdir(parents=True)
        options = ["--corpus", str(CORPUS), "--steps", str(SMOKE_STEPS)]
        with variant_processes(smoke=True, python=python, preloaded=("worker.pretrain",)) as processes:
            processes.run(python, "worker.pretrain", str(folder), *options)
    build(settings, base)
