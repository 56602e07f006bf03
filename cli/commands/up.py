"""``mens up``: a whole installation on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from cli.client.connection import fail, fail_with
from cli.commands.bases.derived import merged_base
from cli.commands.bases.tiny import build
from cli.commands.open import console_link
from cli.commands.weights import ServedWeights, choose_weights, tuned_base
from cli.output import plain_console
from cli.standalone.home import installed_database
from cli.standalone.programs import PROJECT, drain_seconds
from cli.standalone.stack import Stack, StackFailed
from shared.base_models.catalog import load_catalog
from shared.errors import Code, Conflict, MensError
from shared.settings import RetentionSettings, Settings, read_settings

DEFAULT_BASE = "mens-tiny"
CHECK_SECONDS = 2.0
SHOWN_ALIASES = 5

console = plain_console()


def up(
    base: Annotated[
        list[str] | None,
        typer.Option(
            help="Base model to serve, or the digest of a merged model, which becomes a base; repeat for more. The tiny base is "
            "served as well; without --base it is built if it is missing."
        ),
    ] = None,
    default_base: Annotated[
        bool, typer.Option("--default-base/--no-default-base", help=f"Serve {DEFAULT_BASE} in addition to --base.")
    ] = True,
    weights: Annotated[
        ServedWeights,
        typer.Option(
            envvar="MENS_SERVING_WEIGHTS",
            help="Weights to serve: the base's, or its twin's (the base rounded to NF4). auto: the twin's if this machine "
            "trains with NF4. A missing twin is created.",
        ),
    ] = ServedWeights.AUTO,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API on loopback; 0: any free port.")] = 8000,
    wait: Annotated[
        float | None,
        typer.Option(
            min=1, help="Longest wait in seconds until all programs are ready. Default: as long as they make progress."
        ),
    ] = None,
) -> None:
    """Start Valkey, API, worker, control worker and vLLM on this machine, and keep them running until Ctrl-C."""
    settings = read_settings(Settings)
    read_settings(RetentionSettings)
    stack = Stack(settings.home, DEFAULT_BASE, api_port=port, drain_seconds=drain_seconds(settings))
    stop, cut = threading.Event(), threading.Event()
    install_signal_handlers(stop, cut)
    try:
        # Checked before the base is built, which takes a while.
        reserve(stack, console)
        chosen = chosen_bases(settings, base or [], default_base)
        report = partial(print_with_time, console)
        stack.base, *more = choose_weights(settings, chosen, weights, report)
        stack.more_bases = tuple(more)
        if not stop.is_set():
            start(stack, console, stop, wait)
        if not stop.is_set():
            print_usage(stack, tuned_base(settings, stack.base))
            print_unserved(settings, stack.bases)
            print_console_link(stack)
            watch(stack, console, stop)
        if stack.started:
            grace = f"requests in flight get {stack.drain_seconds:g} s to finish; Ctrl-C again aborts them"
            print_with_time(console, f"stopping: {grace}")
    except MensError as error:
        # A program that builds a base gets the signal too, and reports a failure.
        if not stop.is_set():
            fail_with(error)
    except StackFailed as error:
        fail_with(start_failed(error))
    finally:
        # From here on Ctrl-C stops everything at once, also after a failure.
        stop.set()
        stack.stop(cut)
    print_with_time(
        console,
        f"stopped. Jobs, models and files are kept in {settings.home}; run the same command again to continue",
    )


def start_failed(error: StackFailed) -> MensError:
    """Return the coded form of a stack's failure."""
    return MensError(Code.PROGRAM_FAILED, error.message, remedy=error.remedy)


def chosen_bases(settings: Settings, named: list[str], default_base: bool) -> list[str]:
    """Return the bases to serve: the named ones, then the default one unless excluded; end the command if one is
    missing.

    Without a named base, the default one is built if it is missing; next to a named base it is served only if it
    exists.
    """
    if not named and not default_base:
        fail("--no-default-base needs --base: no base is left to serve.")
    bases = [ensure_base(settings, reference) for reference in named or [DEFAULT_BASE]]
    if default_base and any(entry.name == DEFAULT_BASE for entry in load_catalog(settings.catalog_path).bases):
        bases.append(DEFAULT_BASE)
    return list(dict.fromkeys(bases))


def print_unserved(settings: Settings, served: Sequence[str]) -> None:
    """Warn of aliases whose adapters cannot be served now: their base is not served, or only as its twin, which does
    not count as their base.
    """
    from shared.database.overview.base_users import aliases_by_base  # slow to import

    database = installed_database(settings)
    catalog = load_catalog(settings.catalog_path).bases
    twins = {entry.twin_of.name: entry.name for entry in catalog if entry.name in served and entry.twin_of}
    in_catalog = {entry.name for entry in catalog}
    for (base, original), aliases in aliases_by_base(database).items() if database else ():
        twin = twins.get(base)
        if base not in in_catalog or base in served or (twin and not original):
            continue
        names = ", ".join(aliases[:SHOWN_ALIASES]) + (
            f" and {len(aliases) - SHOWN_ALIASES} more" if len(aliases) > SHOWN_ALIASES else ""
        )
        options = "".join(
            f" --base {served_base}" for served_base in [*served, base] if served_base not in (DEFAULT_BASE, twin)
        )
        cause, need, remedy = f"{base} is not served", "it", "serves it too"
        if twin:
            options += " --weights original"
            cause, need, remedy = f"{base} is served as its twin {twin}", "its own weights", "serves these"
        console.print(
            f"note: {cause}, and these aliases need {need}: {names}. `{command(settings.home)} up{options}` {remedy}.\n",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def install_signal_handlers(stop: threading.Event, cut: threading.Event) -> None:
    """Let Ctrl-C and SIGTERM set ``stop``, and Ctrl-C set ``cut`` if ``stop`` is already set."""

    def handle(number: int, _frame: FrameType | None) -> None:
        (cut if number == signal.SIGINT and stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def ensure_base(settings: Settings, base: str) -> str:
    """Return the name of the base to serve; end the command if it is missing.

    The tiny base is built first, and a merged model, given by its digest, is first added as a base.
    """
    if any(entry.name == base for entry in load_catalog(settings.catalog_path).bases):
        return base
    try:
        if merged := merged_base(settings, base):
            console.print(f"the merged model {base} is the base {merged.name}; it is offered once it has been measured")
            return merged.name
    except MensError as error:
        fail_with(error)
    if base != DEFAULT_BASE:
        mens = command(settings.home)
        fail(
            f"the base model {base!r} is not in {settings.catalog_path}; "
            f"build it with `{mens} base build {base}` or add one with `{mens} base add {base} …`."
        )
    console.print(
        f"building the tiny base model {base}: once, 15 s on an idle machine, up to some minutes on a busy one"
    )
    build(settings, base, allow_copy=True)  # it is the default, even if the catalogue has other bases
    return base


def start(stack: Stack, console: Console, stop: threading.Event | None = None, wait: float | None = None) -> None:
    """Start a stack, print which programs are ready, and from time to time which ones are awaited.

    Args:
        stop: once it is set, this returns at once.
        wait: most seconds until all programs are ready; None: as long as they make progress.

    Raises:
        Conflict: as :func:`reserve`.
    """
    reserve(stack, console)
    stack.start()
    with console.status("starting valkey, api, worker, control, serving"):
        for name in stack.wait_until_ready(wait, stop, report=lambda line: print_with_time(console, line)):
            console.print(f"  {stack.label(name)} is ready", highlight=False, markup=False)


def watch(stack: Stack, console: Console, stop: threading.Event) -> None:
    """Print which programs end, restart and become ready again, until ``stop`` is set."""
    while not stop.wait(CHECK_SECONDS):
        for line in stack.new_events():
            print_with_time(console, line)
        stack.raise_if_failed()


def print_with_time(console: Console, line: str) -> None:
    """Print a line with the time of day, because people may read it hours later."""
    console.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, markup=False, soft_wrap=True)


def print_usage(stack: Stack, base: str) -> None:
    """Print how to use the installation that is running now."""
    url, home, mens = stack.connection.url, stack.home, command(stack.home)
    examples = shlex.quote(os.path.relpath(PROJECT / "examples" / "support.jsonl"))
    console.print(
        f"""
Mens is up at {url}   (logs: {home}/logs, key: {home}/connection.json)

  {mens} train {examples} --model {base} --alias support
  {mens} chat support "How do I start a training job?"
  {mens} models
  {mens} --help

From any OpenAI client:
  export OPENAI_BASE_URL={url}/v1
  export OPENAI_API_KEY={stack.connection.key}

From curl, and from `mens` in another folder:
  export MENS_API_URL={url}
  export MENS_API_KEY={stack.connection.key}

Ctrl-C stops everything.
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def print_console_link(stack: Stack) -> None:
    """Print a link that opens the web console signed in, if the installation has one."""
    if link := console_link(stack.connection):
        later = f"{command(stack.home)} open"
        # The link comes last, where a terminal shows it whole.
        console.print(
            f"In a browser, once and within a minute (later: `{later}` makes another link):\n  {link}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def command(home: Path) -> str:
    """Return the command line for ``mens`` in the current folder that finds the installation in a home folder."""
    program = "mens" if shutil.which("mens") else os.path.relpath(Path(sys.executable).with_name("mens"))
    default = Path(Settings.model_fields["home"].default).resolve()
    where = "" if home.resolve() == default else f"MENS_HOME={shlex.quote(str(home))} "
    return where + shlex.quote(program)


def reserve(stack: Stack, console: Console) -> None:
    """Lock the home folder for a stack and check that the API's port is free; a second call changes nothing.

    Raises:
        Conflict: ``PORT_IN_USE``.
    """
    with console.status("waiting for an earlier installation in this folder to stop"):
        stack.lock()
    if stack.api_port:
        with socket.socket() as client:
            in_use = client.connect_ex(("127.0.0.1", stack.api_port)) == 0
        if in_use:
            message = f"Port {stack.api_port} is in use, perhaps by another Mens."
            raise Conflict(Code.PORT_IN_USE, message, remedy="Choose another port with --port.", param="port")
