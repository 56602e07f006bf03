"""Options and arguments that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ExportFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of an export.")]
EXPORT = Path("openai-archive")
"""Where it is, unless another place is given."""


def existing_file(description: str) -> Any:
    """An option that names a file, which has to be there."""
    return typer.Option(exists=True, dir_okay=False, help=description)
