"""Write a picture of a command's real output, for the documentation.

    python -m scripts.terminal_picture docs/pictures/demo.svg --omit '^(waiting|  step)' -- .venv/bin/mens demo

The command runs to its end; its output, without colours, becomes an SVG file that loads nothing from other servers.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS = 118
OMISSION = "…"
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's frame without the web fonts that it would load: a browser takes its own monospace font."""


def run(command: Sequence[str]) -> Iterator[str]:
    """Yield the lines that a command prints, and print them too.

    Raises:
        CalledProcessError: the command failed, so there is nothing to show.
    """
    environment = os.environ | {"COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            yield line.rstrip("\n")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def without(lines: Iterable[str], omit: str) -> Iterator[str]:
    """Yield lines; each run of lines that match a pattern becomes one ellipsis."""
    omitting = False
    for line in lines:
        matches = bool(omit) and re.search(omit, line) is not None
        if not matches:
            yield line
        elif not omitting:
            yield OMISSION
        omitting = matches


def draw(shown_command: str, lines: Iterable[str]) -> str:
    """Return a terminal with a prompt, a command and its output as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {shown_command}", style="bold"))
    for line in lines:
        console.print(Text(line), no_wrap=True, crop=True)
    # A fixed id: the same output gives the same file.
    return console.export_svg(title=shown_command, code_format=FORMAT, unique_id="terminal")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m scripts.terminal_picture", description=__doc__)
    parser.add_argument("picture", type=Path, help="SVG file to write")
    parser.add_argument("--shown", default="", help="command line in the picture; by default the one that runs")
    parser.add_argument("--omit", default="", help="pattern of lines that the picture leaves out")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    lines = list(without(run(options.command), options.omit))
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(draw(options.shown or shlex.join(options.command), lines))


if __name__ == "__main__":
    main()
