"""Keys of OpenAI projects for commands, from the environment or a prompt, and clients that show their activity."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cli.client.connection import note
from cli.output import plain_console
from openai_migration.archive.openai_client import DEFAULT_KEY_VARIABLE, OpenAIClient, ProjectKey, read_key

SECONDS_PER_LINE = 10.0

KeyVariables = Annotated[
    list[str],
    typer.Option(
        "--key-env",
        metavar="VARIABLE",
        default_factory=lambda: [DEFAULT_KEY_VARIABLE],
        show_default=DEFAULT_KEY_VARIABLE,
        help=(
            "Environment variable with a project's key; repeat the option for each project, because a key can read "
            "only its own project. If the variable is not set, you are prompted for the key. The archive names "
            "projects by these variables."
        ),
    ),
]


def read_keys(variables: list[str]) -> list[ProjectKey]:
    """Return the keys in the given variables; on a terminal, prompt for a variable that is not set."""

    def prompt(variable: str) -> str:
        return str(typer.prompt(f"{variable} (not shown)", hide_input=True, err=True))

    return [read_key(variable, prompt if sys.stdin.isatty() else None) for variable in dict.fromkeys(variables)]


class Activity:
    """A client whose activity is shown as one updating line, or, without a terminal, as an occasional line."""

    def __init__(self, key: ProjectKey, bar: Progress, total: int | None) -> None:
        self.client = OpenAIClient(key, note=bar.console.print if not bar.disable else note)
        self._project, self._bar, self._count = key.project, bar, 0
        self._of_total = f" of {total}" if total else ""
        self._task = bar.add_task(key.project, total=None)
        self._next = time.monotonic() + SECONDS_PER_LINE

    def show(self, path: str) -> None:
        """Count a response, and show the count."""
        self._count += 1
        self._bar.update(self._task, description=f"{self._describe()}, {path}")
        if self._bar.disable and time.monotonic() > self._next:
            note(self._describe())
            self._next = time.monotonic() + SECONDS_PER_LINE

    def _describe(self) -> str:
        return f"{self._project}: {self._count}{self._of_total} responses"


@contextmanager
def activity(key: ProjectKey, total: int | None = None) -> Iterator[Activity]:
    """Yield a client with one key, closed at the end; ``total`` is the expected number of responses, if known."""
    console = plain_console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = Activity(key, bar, total)
        with shown.client:
            yield shown
