"""``mens up``: everything on one machine, until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Annotated

import typer
from rich.console import Console

from cli.bases import build
from cli.connection import fail, saved_connection
from cli.stack import Stack, StackFailed
from shared.catalog import load_catalog
from shared.settings import Settings

DEFAULT_BASE = "mens-tiny"
CHECK_SECONDS = 2.0

console = Console()


def up(
    base: Annotated[
        str, typer.Option(help="Base model to serve; the tiny one is built when it is missing.")
    ] = DEFAULT_BASE,
    port: Annotated[int, typer.Option(help="Port of the API on loopback.")] = 8000,
) -> None:
    """Start Valkey, API, worker, sweeper and vLLM on this machine, and keep them running until Ctrl-C."""
    settings = Settings()
    refuse_second_instance(settings)
    if _in_use(port):
        fail(f"port {port} is in use; choose another with --port.")
    ensure_base(settings, base)
    stack = Stack(settings.home, base, api_port=port)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        start(stack, console)
        print_usage(stack, base)
        while not stop.wait(CHECK_SECONDS):
            stack.refuse_dead_programs()
    except StackFailed as error:
        fail(str(error))
    finally:
        console.print("stopping …")
        stack.stop()


def ensure_base(settings: Settings, base: str) -> None:
    """Build the tiny base when it is the one that is wanted and missing."""
    if any(entry.name == base for entry in load_catalog(settings.catalog_path).bases):
        return
    if base != DEFAULT_BASE:
        fail(f"the base model {base!r} is not in the catalogue; add it with `mens base add {base} …`.")
    console.print(f"building the tiny base model {base} (once, about 15 s)")
    build(settings, base)


def refuse_second_instance(settings: Settings) -> None:
    """Two instances on one home would fight over its files."""
    saved = saved_connection(settings.home)
    if saved and saved.answers():
        fail(f"Mens is already running in {settings.home}, at {saved.url}.")


def start(stack: Stack, console: Console) -> None:
    """Start a stack and tell which programs are ready.

    Raises:
        StackFailed: see `cli/stack.py`.
    """
    stack.start()
    ready: list[str] = []
    with console.status("starting valkey, api, worker, control, serving"):
        for name in stack.wait_until_ready():
            ready.append(name)
            console.print(f"  {name} is ready")


def print_usage(stack: Stack, base: str) -> None:
    """How to use what is running now."""
    url, home = stack.connection.url, stack.home
    console.print(
        f"""
Mens is up at {url}   (logs: {home}/logs, key: {home}/connection.json)

  mens train examples/support.jsonl --model {base} --alias support   tune a model
  mens chat support "How do I start a training job?"                     ask it
  mens jobs list · mens models · mens --help

From any OpenAI client:
  export OPENAI_BASE_URL={url}/v1
  export OPENAI_API_KEY={stack.connection.key}

Ctrl-C stops everything.
""",
        highlight=False,
        soft_wrap=True,
    )


def _in_use(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
