"""The tiny base of the benches that need a real one."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.processes import variant_processes
from shared.settings import Settings

BASE = "mens-tiny"
SMOKE_STEPS = 1


def build_tiny_base(settings: Settings, *, smoke: bool) -> None:
    """Make it as `mens base build` does; in a smoke run, with one step and in a fork."""
    from cli.commands.bases import CORPUS, build

    if smoke:
        python, folder = Path(sys.executable), settings.home / "bases" / BASE
        folder.parent.mkdir(parents=True)
        options = ["--corpus", str(CORPUS), "--steps", str(SMOKE_STEPS)]
        with variant_processes(smoke=True, python=python, preloaded=("worker.pretrain",)) as processes:
            processes.run(python, "worker.pretrain", str(folder), *options)
    build(settings, BASE)
