"""Find why a program ended: the line of its log with the cause, and the remedy. Pure.

vLLM's server logs some sixty lines after the line with the cause: the traceback of its engine, then that of the server,
which knows only that the engine failed. So an exception that repeats another is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.errors import Code

MOST_CHARACTERS = 600

PREFIX = re.compile(
    r"^(?:\([\w.-]+ pid=\d+\) )?(?:(?:ERROR|CRITICAL|WARNING|INFO) +\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
"""vLLM writes the process, the level, the time and the place before each line, including those of a traceback."""
EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Exit|Interrupt)): (?P<message>.+)$")
CODED = re.compile(r"^(?P<code>[A-Z][A-Z0-9_]{3,}): (?P<message>.+)$")
PYDANTIC = re.compile(r"^ {2}(?:Value error|Assertion failed), (?P<message>.+?)(?: \[type=\w+, .*)?$")
SERVER_LINE = re.compile(r"^ERROR:\s+(?P<message>\[Errno \d+\] .+)$")
"""An error line of Uvicorn."""
REPEATS = re.compile(
    r"Engine core initialization failed|See root cause above|EngineCore failed|Worker failed with error|^\d+ validation errors? for"
)

REMEDIES = (
    (
        re.compile(r"KV cache is needed|KV cache memory|No available memory for the cache"),
        "Lower MENS_SERVING_MAX_MODEL_LEN, or raise MENS_SERVING_KV_CACHE_BYTES.",
    ),
    (
        re.compile(r"max_model_len \(\d+\) is greater"),
        "Lower MENS_SERVING_MAX_MODEL_LEN to what the base's config allows, or leave it unset.",
    ),
    (
        re.compile(r"failed to be inspected|are not supported for now|No module named"),
        (
            "The installed vLLM cannot load this architecture: install the project's locked environment again, or serve "
            "another base."
        ),
    ),
    (
        re.compile(
            r"can't allocate memory|Cannot allocate memory|out of memory|less than requested memory|MemoryError"
        ),
        (
            "Free memory: end other programs, serve fewer bases, lower MENS_SERVING_MAX_MODEL_LEN, or set "
            "MENS_SERVING_DTYPE=bfloat16."
        ),
    ),
    (
        re.compile(r"[Aa]ddress already in use|Errno 98"),
        "Another program has taken the port: start again, or choose the API's port with --port.",
    ),
    (
        re.compile(r"[Ss]afetensor|deserializing header|size of tensor|shape mismatch|must match the|loaded_weight"),
        "The base's files do not belong together, or one is truncated: download them again, then run `mens base add`.",
    ),
    (re.compile(r"No space left on device"), "Free space on the disk of MENS_HOME."),
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of a program's end.

    Attributes:
        line: one line, as the program wrote it.
        remedy: what to do; empty if it is unknown, or if the line contains it.
        coded: whether it is one of our errors, with a code: only its remedy changes the outcome of another start.
    """

    line: str
    remedy: str = ""
    coded: bool = False


def find_cause(log: str) -> Cause | None:
    """Return the cause in a program's log since it was started; None if no line names one.

    Args:
        log: log of one or several starts; the last start counts.
    """
    causes = [cause for line in log.splitlines() if (cause := _cause_of(PREFIX.sub("", line.rstrip())))]
    if coded := [cause for cause in causes if cause.coded]:
        return coded[-1]
    if not causes:
        return None
    # An exception that was raised while another was handled follows it, and only a validation error usually says more.
    stated = [cause for cause in causes if cause.remedy]
    return (stated or causes)[-1]


def _cause_of(line: str) -> Cause | None:
    if (match := CODED.match(line)) and match["code"] in Code.__members__:
        return Cause(line[:MOST_CHARACTERS], coded=True)
    for pattern in (EXCEPTION, PYDANTIC, SERVER_LINE):
        if match := pattern.match(line):
            if REPEATS.search(match["message"]):
                return None
            name = f"{match['name']}: " if pattern is EXCEPTION else ""
            text = f"{name}{match['message']}"[:MOST_CHARACTERS]
            return Cause(
                text, next((remedy for pattern_of_remedy, remedy in REMEDIES if pattern_of_remedy.search(text)), "")
            )
    return None
