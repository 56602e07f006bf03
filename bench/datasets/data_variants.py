"""One variant of ``bench/datasets/validation.py`` in a separate process: prints seconds, rows and memory as JSON.

    python -m bench.datasets.data_variants VARIANT FILE

The imports of a variant are not counted.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness.peak_memory import peak_bytes

Variant = Callable[[Path], int]
"""Reads a file; returns the number of its lines."""


def check(strict: bool) -> Variant:
    from shared.datasets.reader import check_dataset

    def read(path: Path) -> int:
        with path.open("rb") as file:
            report = check_dataset(file, strict=strict)
        if strict == bool(report.error_count):
            sys.exit("the file does not have the structure that this variant needs")
        return report.rows + report.error_count

    return read


def report(near: bool) -> Variant:
    """Run everything that `mens data check` does, with its processes: labels, lengths and duplicates too."""
    from shared.datasets.file_parts import reading_processes
    from shared.datasets.report import inspect_file

    def read(path: Path) -> int:
        with reading_processes(path.stat().st_size) as executor:
            return inspect_file(path, near=near, executor=executor).training.rows

    return read


def report_lenient() -> Variant:
    """Make the complete report on a file with bad lines."""
    from shared.contract.choices import DataMode
    from shared.datasets.file_parts import reading_processes
    from shared.datasets.report import inspect_file

    def read(path: Path) -> int:
        with reading_processes(path.stat().st_size) as executor:
            training = inspect_file(path, mode=DataMode.LENIENT, executor=executor).training
        return training.rows + training.error_count

    return read


def convert() -> Variant:
    """Run `mens migrate openai convert`, with its processes."""
    import shared.datasets.fingerprints  # noqa: F401 - before the processes are forked, as the command imports it
    from openai_migration.conversion.files import FileTask, convert_file
    from shared.datasets.file_parts import reading_processes

    def read(path: Path) -> int:
        with tempfile.TemporaryDirectory() as folder, reading_processes(path.stat().st_size) as executor:
            task = FileTask(path, Path(folder) / "rows.jsonl", allow_image_loss=True)
            return convert_file(task, executor=executor)[0].lines

    return read


def orjson() -> Variant:
    """Parse only, without checks."""
    import orjson as library

    def read(path: Path) -> int:
        count = 0
        # Fewer system calls than with the usual buffer, to the peer's advantage.
        with path.open("rb", 1 << 18) as file:
            for line in file:
                library.loads(line)
                count += 1
        return count

    return read


def pydantic() -> Variant:
    """Check the same fields and turn rules, ignoring extra keys, in pydantic's fastest way: JSON parsed directly into
    models.
    """
    from typing import Annotated, Literal, Self

    from pydantic import AliasChoices, BaseModel, Field, TypeAdapter, model_validator

    class BenchMessage(BaseModel):
        role: Literal["system", "developer", "user", "assistant", "tool"]
        content: str | None = None
        name: str | None = None
        tool_calls: list[dict[str, Any]] | None = None
        tool_call_id: str | None = None
        weight: Literal[0, 1] | None = None

        @model_validator(mode="after")
        def has_content(self) -> Self:
            content = self.content or ""
            if not self.tool_calls and not (content.strip() if self.role == "assistant" else content):
                raise ValueError("content is empty")
            return self

    class Span(BaseModel):
        start: Annotated[int, Field(ge=0)]
        end: Annotated[int, Field(ge=0)]
        weight: Annotated[float, Field(ge=0)]
        kind: str | None = None

    class BenchRow(BaseModel):
        messages: list[BenchMessage] | None = Field(None, validation_alias=AliasChoices("messages", "turns"))
        prompt: str | None = Field(None, validation_alias=AliasChoices("prompt", "instruction"))
        response: str | None = Field(None, validation_alias=AliasChoices("response", "output", "completion"))
        tools: list[dict[str, Any]] | None = None
        rating: Annotated[int, Field(ge=1, le=5)] | None = None
        category: str | None = None
        difficulty: Annotated[int, Field(ge=1, le=10)] | None = None
        lane: str | None = None
        response_mode: Literal["code_only", "prose_only"] | None = None
        task_family: str | None = None
        syntax_spans: list[Span] | None = None

        @model_validator(mode="after")
        def ends_with_an_answer(self) -> Self:
            last = self.messages[-1] if self.messages else None
            answer = last.content if last else self.response
            if (last and last.role != "assistant") or not (answer or "").strip():
                raise ValueError("nothing to learn")
            return self

    validate = TypeAdapter(BenchRow).validate_json

    def read(path: Path) -> int:
        count = 0
        with path.open("rb", 1 << 18) as file:
            for line in file:
                validate(line)
                count += 1
        return count

    return read


def datasets() -> Variant:
    """Run `load_dataset("json")` on every core; it infers the columns and writes an Arrow file."""
    import datasets as library

    library.disable_progress_bars()

    def read(path: Path) -> int:
        with tempfile.TemporaryDirectory() as cache:
            return len(library.load_dataset("json", data_files=str(path), split="train", cache_dir=cache))

    return read


VARIANTS: dict[str, Callable[[], Variant]] = {
    "check": lambda: check(strict=True),
    "check-bad": lambda: check(strict=False),
    "report": lambda: report(near=False),
    "report-near": lambda: report(near=True),
    "report-lenient": report_lenient,
    "convert": convert,
    "orjson": orjson,
    "pydantic": pydantic,
    "datasets": datasets,
}


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process, and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def print_measured(read: Variant, path: Path) -> None:
    """Run a variant, and print its measurements and the number that it returned."""
    before = peak_bytes()
    start, cpu_start = time.perf_counter(), cpu_seconds()
    rows = read(path)
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": cpu_seconds() - cpu_start}
    peak = peak_bytes()
    print(json.dumps({**seconds, "rows": rows, "peak_bytes": peak, "grown_bytes": peak - before}))


if __name__ == "__main__":
    print_measured(VARIANTS[sys.argv[1]](), Path(sys.argv[2]))
