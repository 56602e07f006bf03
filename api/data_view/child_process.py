"""Process that reads one file for one base: ``python -m api.data_view.child_process CONFIG``.

Started by `readers.py`. CONFIG is JSON: {"path", "base"}, where base is a folder or null. It writes {} when it is ready, and then
one line for each line of its input: {"rows": {…}} or {"report": {…}}. Every line that it writes may be {"error": …} instead.

The rows are a tenant's and the template is a program from the internet: loops, doubled values and filters can take any
time and memory. So processor time and memory are limited, and where the kernel supports it, this process cannot read
other files, open connections or start processes. It does not have keys or settings.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from api.data_view.rows import RowReader
from api.data_view.types import JobRefusal, ReportMade
from shared.contained import limits
from shared.contract.choices import MethodType
from shared.contract.flat_keys import parse_contract
from shared.errors import Code, InvalidRequest, MensError
from shared.preflight.data_files import report_on_file
from shared.preflight.sequence_length import length_without_job
from shared.preflight.types import InputFile
from shared.sandbox import landlock, seccomp
from shared.sandbox.environment import readable_paths
from shared.tokenization.supervision_report import LineNote
from shared.tokenization.tokenizer import Tokenizer

MEMORY_BYTES = 3 << 30
"""Memory for tokenizer, rows and report."""
ROWS_CPU_SECONDS, REPORT_CPU_SECONDS = 15, 600


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Output of a library is not an answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    limits.end_first()
    limits.dump_nothing()
    limits.limit_added_memory(MEMORY_BYTES)
    config = json.loads(sys.argv[1])
    path, base = Path(config["path"]), Path(config["base"]) if config["base"] else None
    limits.limit_added_processor_time(ROWS_CPU_SECONDS)
    confine([path, *(base_files(base) if base else [])])
    limits.limit(resource.RLIMIT_FSIZE, 0)
    try:
        tokenizer = Tokenizer.load(base) if base else None
        length = length_without_job(base) if base else None
    except MensError as error:
        _write(answers, {"error": wire(error)})
        return
    _write(answers, {})
    serve(sys.stdin, answers, path, tokenizer, length)


def base_files(base: Path) -> list[Path]:
    """Return a base's folder, and the real paths of its small files, which are links in the hub's cache."""
    return [base, *(file.resolve() for pattern in ("*.json", "*.jinja") for file in base.glob(pattern))]


def confine(readable: Iterable[Path]) -> None:
    """Give up access to all files except these and those that an import reads, and the system calls that graders may
    not make. Without Landlock or seccomp in the kernel only the limits of time and memory apply, which is logged.
    """
    packages = [Path(__file__).parents[1], Path(__file__).parents[2] / "shared"]
    steps: dict[str, Callable[[], None]] = {
        "files": lambda: landlock.restrict_files([*readable_paths(), *packages, *readable], []),
        "system calls": lambda: seccomp.apply(seccomp.item_program(threads=True)),
    }
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            print(f"the {name} of the process that reads rows are not confined: {error}", file=sys.stderr)


def serve(
    requests: Iterable[str], answers: TextIO, path: Path, tokenizer: Tokenizer | None, length: int | None
) -> None:
    """Answer one request after another; one that needs too much time or memory ends the process, which is replaced."""
    reader = RowReader(path, tokenizer, length)
    for line in requests:
        request = json.loads(line)
        try:
            if what := request.get("rows"):
                limits.limit_added_processor_time(ROWS_CPU_SECONDS)
                page = reader.page(what["after"], what["limit"], what["only"], what["seq_len"], _method(what["method"]))
                _write(answers, {"rows": page.model_dump(mode="json")})
            else:
                limits.limit_added_processor_time(REPORT_CPU_SECONDS)
                what = request["report"]
                method, seq_len = _method(what["method"]) or reader.method, what["seq_len"] or length
                made = make_report(path, tokenizer, seq_len if tokenizer else None, method)
                _write(answers, {"report": made.model_dump(mode="json")})
        except MensError as error:
            _write(answers, {"error": wire(error)})
        except (MemoryError, RecursionError):
            too_much = InvalidRequest(Code.TEMPLATE_UNSUPPORTED, "Rendering a row takes too much memory.")
            _write(answers, {"error": wire(too_much)})


def make_report(path: Path, tokenizer: Tokenizer | None, seq_len: int | None, method: MethodType) -> ReportMade:
    """Read the whole file, and report on it as a job's preflight would."""
    contract = parse_contract({"data": {"train_file": "-"}, "method": {"type": method}})
    report, supervision, error = report_on_file(InputFile("", "", path), contract, seq_len or 0, tokenizer)
    return ReportMade(
        seq_len=seq_len,
        method=method,
        data=report.training,
        notes=report.notes,
        supervision=supervision,
        refusal=_refusal(error) if error else None,
    )


def _refusal(error: MensError) -> JobRefusal:
    lines = [LineNote(line=fault["line"], reason=fault["reason"]) for fault in error.details.get("lines", [])]
    return JobRefusal(code=error.code, message=error.message, remedy=error.remedy, lines=lines)


def wire(error: MensError) -> dict[str, Any]:
    """Return an error as JSON, with the name of its class."""
    return {"kind": type(error).__name__, **error.as_dict()}


def _method(name: str | None) -> MethodType | None:
    return MethodType(name) if name else None


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
