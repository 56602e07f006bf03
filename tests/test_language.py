"""The language of messages, docstrings, comments and pages: the list of phrases that are not used, and the retired words.

`PHRASES` applies to all that people read. `ALLOWED` counts the phrases that a folder still has; the counts only shrink. `RETIRED` applies to
pages.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("api", "bench", "cli", "deploy", "examples", "scripts", "serving", "shared", "worker")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
READMES = sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.md"))
DECISIONS = ROOT / "docs" / "decisions"
PHRASES = {
    r"(?i)(?<!there\s)\b(?:is|are|was|were)\s+no\b(?!\s+(?:longer|more|other|(?:\w+er|worse|less)\s+than)\b)": "is not a",
    r"(?i)\bthere\s+(?:is|are|was|were)\s+(?:no|none)\b": "does not exist, is missing, without",
    r"(?i)\bfor\s+ever\b": "permanently",
    r"(?i)\bcame\s+of\b": "result of, outcome of",
    r"(?i)\b(?:is|are|was|were|be|been)\s+told\b": "is reported, is distinguished",
    r"(?i)\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"(?i)\banew\b": "again",
    r"(?i)\b(?:nobody|whoever)\b": "no caller, the operator, the person who",
    r"(?i)\bnothing\s+of\b": "no part of",
    r"(?i)\bthe\s+way\s+on\b": "how to continue",
    r"(?i)\bbeside\b": "next to, with, against",
    r"\A\s*(?:What|Whether)\s+\w+\s+\w(?![^?]*\?)": "a noun or a verb phrase, such as 'Return true if'",
    r"(?:\A\s*|[.;:]\s+)Of\s+(?!course\b)(?=[a-z])": "a sentence that begins with its subject",
}
"""Patterns of phrases that are not plain technical English, and what to write instead."""
ALLOWED = {
    "cli: strings": 104,
    "cli: prose": 18,
    "shared: strings": 19,
    "shared: prose": 1,
    "worker: strings": 4,
}
"""Phrases that remain: in a folder's strings, in its docstrings and comments, and in pages. Rewrite phrases and lower the counts."""
QUOTED = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
"""Code and targets of links in a page."""
RETIRED = {
    "doorbell": "message, job queue",
    "bells?|rings?|ringing|rung": "message; enqueue",
    "wall": "guard",
    "front door": "the API",
    "ledger": "database",
    "under way": "in flight",
    "learnt": "supervised",
    "leftovers?": "unreferenced folders",
    "doomed": "pending deletion",
    "asked": "requested",
    "told|tells": "reported, returns",
    "story": "events",
    "presence": "disconnect",
    "slot debts?": "pending releases",
    "whoever|nobody|somebody|anybody": "the caller, the operator, no replica",
    r"parity(?!\s+certificate|:)": "reference scores",
    "lanes": "variants",
}
"""Words that only this project used, as patterns, and the field's words for the same things."""
EXPLAINED = {
    "0001-the-doorbell-is-acknowledged-early.md": "doorbell|bells?|rings?|ringing|rung",
    "0005-the-wall-answers-for-adapters.md": "wall",
    "0006-the-ledger-is-three-modules.md": "ledger",
}
"""Decisions whose title has such a word, and which explain it."""


def phrases_in(texts: Iterable[str]) -> list[str]:
    """Return each phrase of the list that occurs, with the words around it and the replacement."""
    return [
        f"…{text[max(0, match.start() - 40) : match.end() + 40]}…: write {meaning!r}"
        for text in texts
        for pattern, meaning in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]


def strings_and_prose(source: str) -> tuple[list[str], list[str]]:
    """Return a module's strings, and its docstrings and comments."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings: list[str] = []
    prose: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            (prose if id(node) in statements else strings).append(node.value)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return strings, prose + [token.string for token in tokens if token.type == tokenize.COMMENT]


def may_have_phrases(source: str) -> bool:
    """Return whether a module is worth parsing: parsing all of them takes most of a minute."""
    joined = re.sub(r"\"\s*\n\s*[rf]*\"", "", source)
    return bool(phrases_in([joined]) or re.search(r"[\"']\s*(?:What|Whether|Of) ", source))


def phrases_of_folder(folder: Path) -> dict[str, list[str]]:
    """Return the phrases of a folder's modules by the key that `ALLOWED` has for them."""
    phrases: dict[str, list[str]] = {f"{folder.name}: strings": [], f"{folder.name}: prose": []}
    for path in sorted(folder.rglob("*.py")):
        if may_have_phrases(source := path.read_text()):
            for key, texts in zip(phrases, strings_and_prose(source), strict=True):
                phrases[key] += [f"{path.relative_to(ROOT)}: {fault}" for fault in phrases_in(texts)]
    return phrases


def phrases_of_pages(pages: Iterable[Path]) -> list[str]:
    return [
        f"{page.relative_to(ROOT)}: {fault}"
        for page in pages
        for fault in phrases_in([QUOTED.sub("", page.read_text())])
    ]


def check(key: str, phrases: list[str]) -> None:
    allowed = ALLOWED.get(key, 0)
    assert len(phrases) <= allowed, "\n".join([f"{key}: {len(phrases)} phrases, {allowed} are allowed:", *phrases])
    assert len(phrases) == allowed, f"{key}: {len(phrases)} phrases are left: lower the count {allowed} in ALLOWED"


@pytest.mark.parametrize("folder", SOURCES)
def test_sources_are_plain_english(folder: str) -> None:
    for key, phrases in phrases_of_folder(ROOT / folder).items():
        check(key, phrases)


def test_pages_are_plain_english() -> None:
    check("decisions", phrases_of_pages(page for page in PAGES if page.parent == DECISIONS))
    check("pages", phrases_of_pages(page for page in PAGES if page.parent != DECISIONS))
    check("readmes", phrases_of_pages(READMES))


def test_only_existing_folders_are_allowed_phrases() -> None:
    keys = {f"{folder}: {kind}" for folder in SOURCES for kind in ("strings", "prose")}
    assert ALLOWED.keys() <= keys | {"decisions", "pages", "readmes"}
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    ("source", "strings", "prose"),
    [
        ('raise ValueError(f"{name!r} is no"\n    " name")', 1, 0),
        ('"""What came of it."""', 0, 2),
        ("x = 1  # nobody reads it", 0, 1),
        ('"""One.\n\nThere is\nnone. Of two one is left."""', 0, 2),
        ('x = "It is no longer valid; no more than two. Of course. What is a bug?"', 0, 0),
        ("told = anew.mend()", 0, 0),
    ],
)
def test_phrases_are_found(source: str, strings: int, prose: int) -> None:
    assert tuple(len(phrases_in(texts)) for texts in strings_and_prose(source)) == (strings, prose)
    assert may_have_phrases(source) or not strings + prose


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_retired_word_occurs(page: Path) -> None:
    prose, explained = QUOTED.sub("", page.read_text()), EXPLAINED.get(page.name)
    for pattern, meaning in RETIRED.items():
        words = re.findall(rf"\b(?:{pattern})\b", prose, re.IGNORECASE)
        unexplained = [word for word in words if not (explained and re.fullmatch(explained, word, re.IGNORECASE))]
        assert not unexplained, f"{page.name}: {unexplained}: write {meaning!r}"
