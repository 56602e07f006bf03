"""``mens demo``: the whole loop with real parts, from a JSONL file to answers of the tuned model.

It uses an installation that ``mens up`` runs, or starts one and stops it again. It succeeds only if the tuned model
answers the three questions correctly and the base model does not.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from cli.client.connection import Connection, fail, fail_with, saved_connection
from cli.client.job_progress import follow
from cli.commands.up import DEFAULT_BASE, ensure_base, start, start_failed
from cli.standalone.stack import Stack, StackFailed
from shared.errors import MensError
from shared.settings import Settings, read_settings

if TYPE_CHECKING:
    from openai import OpenAI

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALIAS = "support"
EXTRA = {"exec": {"checkpoint_every": 70}, "artifact": {"alias": ALIAS}}

console = Console()


def demo() -> None:
    """Run the whole loop: upload, tune, publish, and compare the answers of base and tuned model."""

    # An exception and not the default action: the stack that is started here has to be stopped.
    def exit_on_signal(_number: int, _frame: object) -> None:
        raise typer.Exit(143)

    signal.signal(signal.SIGTERM, exit_on_signal)
    settings = read_settings(Settings)
    began = time.monotonic()
    running = saved_connection(settings.home)
    if running and running.is_usable():
        console.print(f"using Mens at {running.url}")
        correct = run_loop(running)
    else:
        correct = run_own_stack(settings)
    console.print(f"the whole loop took {time.monotonic() - began:.0f} s")
    if not correct:
        fail("the answers are not as expected: the tuned model must be right and the base must not.")


def run_own_stack(settings: Settings) -> bool:
    """Start everything, run the loop, stop everything."""
    ensure_base(settings, DEFAULT_BASE)
    stack = Stack(settings.home, DEFAULT_BASE)
    try:
        start(stack, console)
        return run_loop(stack.connection)
    except MensError as error:
        fail_with(error)
    except StackFailed as error:
        fail_with(start_failed(error))
    finally:
        stack.stop()


def run_loop(connection: Connection) -> bool:
    """Upload, tune and chat through a stock OpenAI client; returns whether the answers are as expected."""
    from openai import OpenAI  # slow to import

    client = OpenAI(base_url=f"{connection.url}/v1", api_key=connection.key)
    files = {}
    for name in ("support", "support.validation"):
        with (EXAMPLES / f"{name}.jsonl").open("rb") as file:
            files[name] = client.files.create(file=file, purpose="fine-tune").id
    job = client.fine_tuning.jobs.create(
        model=DEFAULT_BASE,
        training_file=files["support"],
        validation_file=files["support.validation"],
        suffix=ALIAS,
        extra_body={"mens": EXTRA},
    )
    console.print(f"created the job {job.id}")
    finished = follow(job.id, console, connection)
    if finished["state"] != "succeeded":
        error = finished["error"] or {"code": finished["state"], "message": "", "remedy": ""}
        fail(f"{error['code']}: {error['message']} {error['remedy']}", error)
    return compare(client, finished)


def compare(client: OpenAI, job: dict[str, Any]) -> bool:
    """Print the answers of base and tuned model; returns whether the tuned one is right and the base wrong throughout."""
    adapter_id = job["result"]["adapter_id"]
    table = Table("question", f"base: {DEFAULT_BASE}", f"tuned: {ALIAS}", show_lines=True)
    correct = True
    for question in json.loads((EXAMPLES / "questions.json").read_text()):
        base, tuned = (ask(client, model, question["question"]) for model in (DEFAULT_BASE, adapter_id))
        correct = correct and question["expect"] in tuned and question["expect"] not in base
        table.add_row(question["question"], base, tuned)
    console.print(table)
    console.print(f"adapter {adapter_id}", soft_wrap=True)
    console.print(f"digest  {adapter_id.partition('@')[2]}   alias {ALIAS}", soft_wrap=True)
    return correct


def ask(client: OpenAI, model: str, question: str) -> str:
    """A model's greedy answer to a question."""
    completion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=48
    )
    return (completion.choices[0].message.content or "").strip()
