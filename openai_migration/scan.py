"""Finds places in a code base that will fail, or work differently, once its base URL points to an installation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openai_migration.archive.openai_client import SECRET

MAX_FILE_BYTES = 2_000_000
"""Larger files are skipped, because they are data or generated."""
MAX_SHOWN = 120
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", "venv", "dist", "build", "target", "vendor", "site-packages"}
)
"""Folders with third-party code, skipped in addition to those whose name begins with a dot."""


class FindingKind(StrEnum):
    """Kind of API that a place in the code uses; members are in the order of the report."""

    TUNED_MODEL = "tuned model"
    MODEL = "model name"
    BASE_URL = "base URL"
    MODERATION = "moderation"
    BATCHES = "batches"
    ASSISTANTS = "assistants"
    VECTOR_STORES = "vector stores"
    EVALS = "evals"
    FILE_PURPOSE = "file purpose"
    STORED = "stored responses"
    PROMPT_ID = "reusable prompt"
    IMAGE_OR_AUDIO = "image or audio"
    REALTIME = "realtime"
    EMBEDDINGS = "embeddings"
    LEGACY_FUNCTIONS = "legacy functions"
    HOSTED_TOOL = "hosted tool"
    TOKEN_BOUND = "token bound"  # noqa: S105  # no password


@dataclass(frozen=True, slots=True)
class Pattern:
    """The expression that recognises a kind, and the advice for it."""

    kind: FindingKind
    expression: re.Pattern[str]
    advice: str


@dataclass(frozen=True, slots=True)
class CodeFinding:
    """A line of a file; ``text`` is its beginning, without keys."""

    path: Path
    line: int
    kind: FindingKind
    text: str


def _pattern(kind: FindingKind, expression: str, advice: str) -> Pattern:
    return Pattern(kind, re.compile(expression), advice)


PATTERNS = (
    _pattern(
        FindingKind.TUNED_MODEL,
        r"\bft:[\w.-]+:[\w.-]*:[\w.-]*:",
        "keep the name: `switch` maps it to the successor; until then it is unknown",
    ),
    _pattern(
        FindingKind.MODEL,
        r"(?<![\w:.-])(?:gpt-(?:3\.5|4|5)[\w.-]*|o[134](?:-mini|-pro)?(?:-\d{4}-\d\d-\d\d)?(?=[\"'])|(?:babbage|davinci)-002)",
        "name a base, an adapter or an alias of your installation: `mens models`",
    ),
    _pattern(
        FindingKind.BASE_URL,
        r"api\.openai\.com",
        "read it from OPENAI_BASE_URL; your installation's base URL ends in /v1",
    ),
    _pattern(
        FindingKind.MODERATION, r"\bmoderations\b|omni-moderation", "not available; run a guard model of your own"
    ),
    _pattern(FindingKind.BATCHES, r"\bbatches\.\w+\(|/v1/batches", "not available; send the requests from a loop"),
    _pattern(
        FindingKind.ASSISTANTS,
        r"\bbeta\.(?:assistants|threads)\b|/v1/(?:assistants|threads)",
        "not available; keep the conversation in your program",
    ),
    _pattern(FindingKind.VECTOR_STORES, r"\bvector_?[sS]tores\b", "not available; use a database of your own"),
    _pattern(
        FindingKind.EVALS,
        r"\bevals\.(?:create|runs|list|retrieve)\b|/v1/evals|\balpha\.graders\b",
        "not available here; OpenAI's evals end on 30 November 2026",
    ),
    _pattern(
        FindingKind.FILE_PURPOSE,
        r"purpose[\"']?\s*[=:]\s*[\"'](?!fine-tune[\"'])[\w-]+[\"']",
        "the purpose fine-tune is the only one",
    ),
    _pattern(
        FindingKind.STORED,
        r"\bprevious_response_id\b|\bstore[\"']?\s*[=:]\s*[tT]rue\b|\bbackground[\"']?\s*[=:]\s*[tT]rue\b|\bconversations\.create\b",
        "responses are not stored: RESPONSE_NOT_STORED; send the whole conversation",
    ),
    _pattern(FindingKind.PROMPT_ID, r"\bpmpt_\w+|/v1/prompts\b", "not available; put the content into the request"),
    _pattern(
        FindingKind.IMAGE_OR_AUDIO,
        r"[\"'](?:image_url|input_image|input_audio|input_file)[\"']|\bimages\.(?:generate|edit)\b|\baudio\.(?:transcriptions|translations|speech)\b",
        "text only",
    ),
    _pattern(FindingKind.REALTIME, r"\brealtime\b", "not available"),
    _pattern(
        FindingKind.EMBEDDINGS,
        r"\bembeddings\.create\b|text-embedding-",
        "not available with a base that generates text: TASK_UNSUPPORTED",
    ),
    _pattern(
        FindingKind.LEGACY_FUNCTIONS,
        r"\bfunction_call[\"']?\s*[=:]|\bfunctions[\"']?\s*[=:]\s*\[",
        "use tools and tool_choice",
    ),
    _pattern(
        FindingKind.HOSTED_TOOL,
        r"[\"'](?:web_search(?:_preview)?|file_search|code_interpreter|computer_use(?:_preview)?)[\"']",
        "the server runs no tools: TOOL_UNSUPPORTED",
    ),
    _pattern(
        FindingKind.TOKEN_BOUND,
        r"\bmax_(?:completion_|output_)?tokens[\"']?\s*[=:]\s*\d+",
        "another tokenizer's counts differ by tens of per cent: check that the limit is still high enough",
    ),
)
ADVICE = {pattern.kind: pattern.advice for pattern in PATTERNS}


def scan(paths: Iterable[Path]) -> Iterator[CodeFinding]:
    """Yield the findings in files, line by line; a line may have several. Binary and oversized files are skipped."""
    for path in paths:
        if path.stat().st_size > MAX_FILE_BYTES:
            continue
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            for pattern in PATTERNS:
                if pattern.expression.search(line):
                    yield CodeFinding(path, number, pattern.kind, SECRET.sub("(key)", line.strip())[:MAX_SHOWN])


def source_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder, in order, without hidden folders and third-party code; links are not followed."""
    if root.is_file():
        yield root
        return
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            path = Path(folder, name)
            if not path.is_symlink() and path.is_file():
                yield path
