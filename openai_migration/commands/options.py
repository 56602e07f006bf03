"""Command-line arguments that several steps share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ExportFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of an export.")]
EXPORT = Path("openai-archive")
"""Default folder of the archive."""
