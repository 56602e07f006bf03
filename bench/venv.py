"""The environment of the peers that are measured against, pinned, in `.cache/bench-venv`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".cache" / "bench-venv"
PYTHON = FOLDER / "bin" / "python"
PINNED = (
    "torch==2.13.0",
    "trl==1.16.0",
    "datasets==5.2.0",
    "transformers==5.19.0",
    "peft==0.21.2",
    "accelerate==1.15.0",
    "bitsandbytes==0.50.2",
    "orjson==3.13.0",
    "pydantic==2.14.3",
)


def ensure_venv() -> Path:
    """Make the environment if it is not there yet, and bring it to the pinned versions; returns its Python."""
    stamp, wanted = FOLDER / "pinned.txt", "\n".join(PINNED)
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", *PINNED], check=True)
        stamp.write_text(wanted)
    return PYTHON
