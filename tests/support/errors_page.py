"""Generator of docs/errors.md: the introduction and each code's sentences are written by hand; the rest comes from the
error tree.

The tree says which class raises a code, and so who can act; the sections of the enumeration say where an operator looks.
``MENS_UPDATE_GOLDEN=1 pytest tests/test_errors_page.py`` writes the page: a row ``| `CODE` | happened | remedy |``
may stand anywhere, and is put into its section.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from api.errors import STATUS
from shared import errors
from shared.errors import Code, MensError
from tests.support.tiers import TIERS

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = (errors.Unavailable, errors.ArtifactInvalid, errors.JobFailed, errors.LeaseLost, errors.MensError)
"""Classes whose codes may need an operator; the others describe faults of a request."""
WHO = {
    errors.Unavailable: "the operator; callers try again",
    errors.ArtifactInvalid: "the operator, or the maker of the artifact",
    errors.JobFailed: "the job's owner; the operator if it affects several tenants",
    errors.LeaseLost: "no one: the stale attempt stops automatically",
    errors.MensError: "the operator",
    errors.InvalidRequest: "the caller",
    errors.ContractRejected: "the caller",
    errors.DatasetInvalid: "the caller",
    errors.TooLarge: "the caller",
    errors.Unauthenticated: "the caller; an admin of its tenant creates keys",
    errors.Forbidden: "the caller; an admin or operator grants rights and quotas",
    errors.TooMany: "the caller waits; an operator raises limits",
    errors.TooSlow: "the caller, or the network between",
    errors.NotFound: "the caller",
    errors.Conflict: "the caller",
}
LOOK_AT = {
    "requests": "the API's log, by the request's id",
    "files and data": "the job's events: `mens jobs show ID`",
    "data and templates": "the base's tokenizer and template, the job's events: `mens jobs show ID`",
    "models, contracts": "`mens base list`, the catalogue, the API's and the worker's environment",
    "model preflight": "the base's folder or snapshot, `mens base list`",
    "gates": "the job's error, `mens plan`",
    "jobs": "`mens jobs show ID`, `mens jobs logs ID` ([runs](runs.md))",
    "adapters": "`mens models show ID`, the replica's log, `mens storage verify`",
    "merge": "`mens jobs show ID`, the files that the message names, `mens storage verify`",
    "export": "the machine where `mens adapter export` ran",
    "parts of the system": "`mens replicas`, `/ready` of the API, the logs of the affected process",
    "graders": "the run's items: `mens eval show`; the worker's log",
    "corpora": "the file or folder that the message names, on that machine",
    "checkers of languages": "the package that has the checker, on that machine",
    "scorecards": "the scorecard's file",
    "evaluations": "`mens jobs show ID` of the run's job, the worker's log",
    "benchmark suites": "the output of `mens eval suites`, `suites` in `MENS_HOME`",
    "the command line": "`/ready` of the installation's API, `logs` in `MENS_HOME`",
    "leaving another provider": "the archive's folder, the command's output",
}
"""Where to look for a code's cause, by the section of the enumeration."""
LOOK_AT_CODE = {
    Code.INTERNAL_ERROR: "the API's or worker's log: `unexpected error in`, with the traceback; MensInternalErrors",
    Code.CONNECTIONS_LIMITED: "`MENS_MAX_CONNECTIONS`, the clients that hold connections, MensQuotaHit",
    Code.DATABASE_UNAVAILABLE: "the database, its connections, its disk; MensDatabaseUnreachable",
    Code.STORAGE_FULL: "the disk of `MENS_STORAGE_DIR`, `MENS_RUNS_DIR` or `MENS_CACHE_DIR`; `mens retention`",
    Code.STORAGE_OBJECT_MISSING: "`mens storage verify`; the storage settings of every tier",
    Code.STORAGE_UNAVAILABLE: "`mens status --workers`, that machine's disks and mounts; the object store and the network to it; MensWorkerDiskFault",
    Code.STORAGE_DENIED: "the credentials of that process ([storage](storage.md#permissions))",
    Code.STORAGE_BUCKET_NOT_FOUND: "`MENS_S3_…` of that process",
    Code.SERVING_UNAVAILABLE: "`mens replicas`, the replicas' logs; MensNoReplica",
    Code.SERVING_REFUSED: "the replica's log, for the adapter's id; MensAdaptersRefused",
    Code.SERVING_FAILED: "the replica's log, by the request's id",
    Code.SANDBOX_UNAVAILABLE: "`GET /v1/capabilities`, `MENS_SANDBOX`, the kernel's user namespaces",
    Code.OUT_OF_MEMORY: "`memory` in the run's `run_summary.json`: predicted and peak",
    Code.TRAINER_KILLED: "the machine's memory and the kernel's log",
    Code.TRAINER_TERMINATED: "that machine's service manager or Kubernetes' events: what stopped the process",
    Code.PEER_LOST: "that machine, its kernel's log, the network between the machines",
    Code.TRAINER_ORPHANED: "the worker's connection to the database",
    Code.LEASE_EXPIRED: "that worker's machine; MensWorkersDying",
    Code.BASE_NOT_FETCHED: "`MENS_FETCH_BASES`, the hub's cache of the API",
    Code.HUB_UNAVAILABLE: "that machine's connection to the hub, `HF_HOME`, `HF_TOKEN`",
}
"""Where to look for a code's cause, for codes for which that of the section is not specific enough."""
INDIRECT: dict[type[MensError], tuple[Code, ...]] = {
    errors.InvalidRequest: (
        Code.GRAMMAR_TOO_COSTLY, Code.REQUEST_REJECTED, Code.CONTEXT_LENGTH_EXCEEDED, Code.TASK_UNSUPPORTED, Code.METHOD_NOT_ALLOWED,
    ),
    errors.JobFailed: (
        Code.WALL_CLOCK_CAP_EXCEEDED, Code.GPU_BUDGET_EXCEEDED, Code.TIME_LIMIT_EXCEEDED,
        Code.ADAPTER_NO_EFFECT, Code.ADAPTER_TEMPLATE_MISMATCH, Code.ADAPTER_STOP_MISMATCH, Code.TOOL_CALLS_BROKEN,
        Code.ADAPTER_PARITY_FAILED, Code.ADAPTER_PRECISION_MISMATCH, Code.GRADER_FAILED,
    ),
    errors.ArtifactInvalid: (
        Code.ADAPTER_UNSIGNED, Code.ADAPTER_SIGNATURE_INVALID, Code.MODEL_UNSIGNED, Code.MODEL_SIGNATURE_INVALID,
        Code.MERGE_BASE_SHARD_NOT_FOUND, Code.MERGE_ADAPTER_NOT_FOUND, Code.MERGE_META_NOT_FOUND,
    ),
}  # fmt: skip
"""Codes that are passed to their error class through a table or a tuple, by class."""
RULES = {"Refusal": errors.ContractRejected}
"""Functions that take a code and whose result is raised as an error later, by name."""
CALL = re.compile(r"\b(\w+)\(\s*(?:code=)?Code\.([A-Z0-9_]+)\b")
MAKER = re.compile(r"def (\w+)\([^)]*\) -> (\w+):")
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| (.+?) \| (.+?) \|", re.MULTILINE)
PAGE = ROOT / "docs" / "errors.md"


class Entry(NamedTuple):
    """The information about a code in the error tree and in docs/errors.md."""

    code: Code
    kinds: tuple[type[MensError], ...]
    happened: str
    remedy: str
    section: str


@cache
def classes() -> dict[str, type[MensError]]:
    """Classes of the tree by name."""
    return {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MensError)}


@cache
def kinds_by_code() -> Mapping[Code, set[type[MensError]]]:
    """Classes that raise each code, according to the sources of all tiers."""
    found: dict[Code, set[type[MensError]]] = defaultdict(set)
    for kind, codes in INDIRECT.items():
        for code in codes:
            found[code].add(kind)
    for text in _sources():
        makers = {**_shared_makers(), **_makers(text), **RULES, **classes()}
        for name, code in CALL.findall(text):
            if name in makers:
                found[Code(code)].add(makers[name])
    return dict(found)


@cache
def entries() -> tuple[Entry, ...]:
    """An entry for each code, in the order of the enumeration."""
    documented = {code: (happened, remedy) for code, happened, remedy in ROW.findall(PAGE.read_text())}
    sections, kinds = _sections(), kinds_by_code()
    order = list(classes().values())
    return tuple(
        Entry(code, tuple(sorted(kinds.get(code, ()), key=order.index)), *documented[str(code)], sections[code])
        for code in Code
    )


def page() -> str:
    """Return the text of docs/errors.md."""
    head = PAGE.read_text().partition("\n## ")[0].partition("\n| code |")[0].rstrip("\n")
    by_section: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries():
        by_section[entry.section].append(entry)
    return "\n".join([head, "", _classes_table(), *(_section(name, own) for name, own in by_section.items())])


def _classes_table() -> str:
    lines = ["## Classes", "", "| class | HTTP | who acts | worth a retry |", "|---|---|---|---|"]
    for kind, who in WHO.items():
        status = STATUS.get(kind)
        lines.append(
            f"| {kind.__name__} | {status.value if status else 500} | {who} | {_yes(kind.default_retryable)} |"
        )
    return "\n".join(lines) + "\n"


def _section(name: str, found: list[Entry]) -> str:
    lines = [f"## {name[0].upper()}{name[1:]}", ""]
    operators = [entry for entry in found if set(entry.kinds) & set(OPERATORS) or entry.code in LOOK_AT_CODE]
    if any(entry.code not in LOOK_AT_CODE for entry in operators):
        lines += [f"An operator looks at {LOOK_AT[name]}.", ""]
    lines += ["| code | what happened | what to do | class |", "|---|---|---|---|"]
    lines += [f"| `{entry.code}` | {entry.happened} | {entry.remedy} | {_names(entry.kinds)} |" for entry in found]
    own = [f"- `{entry.code}`: {LOOK_AT_CODE[entry.code]}" for entry in operators if entry.code in LOOK_AT_CODE]
    return "\n".join([*lines, *(["", "For these codes an operator looks at:", "", *own] if own else [])]) + "\n"


def _names(kinds: Iterable[type[MensError]]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _sections() -> dict[Code, str]:
    """Comment above each code in the enumeration."""
    body = _read("shared/errors.py").partition("class Code(StrEnum):")[2].partition("\nclass ")[0]
    section, found = "", {}
    for line in body.splitlines():
        if line.startswith("    # "):
            section = line.removeprefix("    # ")
        elif name := re.match(r"    ([A-Z0-9_]+) = ", line):
            found[Code(name[1])] = section
    return found


@cache
def _sources() -> tuple[str, ...]:
    texts = (path.read_text() for tier in TIERS for path in (ROOT / tier).rglob("*.py"))
    return tuple(text for text in texts if "Code." in text)


def _makers(text: str) -> dict[str, type[MensError]]:
    """Functions that create an error, by its class."""
    return {name: classes()[kind] for name, kind in MAKER.findall(text) if kind in classes()}


@cache
def _shared_makers() -> dict[str, type[MensError]]:
    """Functions that several modules use; private ones count only in their own module."""
    found = {name: kind for text in _sources() for name, kind in _makers(text).items()}
    return {name: kind for name, kind in found.items() if not name.startswith("_")}


def _read(path: str) -> str:
    return (ROOT / path).read_text()
