"""The language of messages, docstrings, comments and pages: the list of phrases that are not used, and the retired words.

`PHRASES` applies to all that people read, `RETIRED` to pages. In tests, strings are data, so only docstrings and comments
are read.
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
SOURCES = (
    "api",
    "bench",
    "cli",
    "corpus",
    "deploy",
    "examples",
    "openai_migration",
    "scripts",
    "serving",
    "shared",
    "worker",
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
READMES = sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.md"))
PHRASES = {
    r"(?i)(?<!there\s)\b(?:is|are|was|were)\s+no\b(?!\s+(?:longer|more|other|(?:\w+er|worse|less)\s+than)\b)": "is not a",
    r"(?i)\bthere\s+(?:is|are|was|were)\s+(?:no|none)\b": "does not exist, is missing, without",
    r"(?i)\bfor\s+ever\b": "permanently",
    r"(?i)\bcame\s+of\b": "result of, outcome of",
    r"(?i)\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"(?i)\banew\b": "again",
    r"(?i)\b(?:nobody|whoever)\b": "no caller, the operator, the person who",
    r"(?i)\bnothing\s+of\b": "no part of",
    r"(?i)\bthe\s+way\s+on\b": "how to continue",
    r"(?i)\bbeside\b": "next to, with, against",
    r"(?i)\bso\s+(?:many|much)\b(?!\s+(?:that|as)\b)": "this many, as many",
    r"(?i)\b(?:told|tells)\b(?!\s+(?:\w+\s+){0,2}apart\b)": "reported, says",
    r"(?i)\b(?:is|are|was|were)\s+(?:not|already)\s+there\b": "does not exist, is missing, exists",
    r"(?i)\b(?:one(?:\s+\w+)?\s+a\s+(?:line|process)|an?\s+(?:object|row)\s+a\s+line|a\s+(?:line|row)\s+each)\b": "one per line",
    r"(?i)\b(?:requests|tokens|bytes|rows)\s+a\s+(?:minute|second|row|token)\b": "per minute",
    r"(?i)\bany\s+more\b": "no longer",
    r"(?i)\b(?:go|goes|going|went)\s+on\b": "continue",
    r"(?i)\b(?:broken?|breaks)\s+off\b": "interrupted, aborted",
    r"\A\s*(?:What|Whether)\s+\w+\s+\w(?![^?]*\?)": "a noun or a verb phrase, such as 'Return true if'",
    r"\A\s*That\b": "a noun or a verb phrase",
    r"[.;]\s+What\s+\w+\s+\w(?![^?]*\?)": "a sentence that begins with its subject",
    r"(?:\A\s*|[.;:]\s+)Of\s+(?!course\b)(?=[a-z])": "a sentence that begins with its subject",
    r"[.;]\s+So\s+(?:do|does|are|did)\b": "a sentence that begins with its subject, and 'also'",
    r"(?m)^\s+\w+: of\b": "a description that begins with its noun",
    r"(?i)\b(?:(?<!no )(?<!any )other|another)\s+\w+\s+than\b": "different from, other than",
    r"(?i)\b(?:is|are|was|were)\s+others\b(?!')": "differ, have changed",
    r"(?i)\bone's\b(?!\s+own)": "the noun again, in the possessive",
    r"(?i)\bthe\s+most\s+(?:rows|tokens|bytes|copies|requests|that)\b": "the largest number of",
    r"(?i)\b(?:the|a|its)\s+begin\b": "the beginning",
    r"(?i)(?<!and )\bforth\b": "forward",
}
"""Patterns of phrases that are not plain technical English, and what to write instead."""
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
NOT_NOUNS = frozenset({"asked", "each", "found", "given", "known", "one", "told", "wanted"})
"""Names of variables, parameters, fields and functions that say how a value was got, and not what it is."""
NOT_PARTS = frozenset({"asked", "beside", "told"})
"""Words that are not a part of such a name either."""
OLD_TESTS = re.compile(
    r"def (test\w*_(?:(?<!_there_)(?:is|are)_no(?!_(?:longer|more|other|such|way|larger|smaller|worse|less)_)"
    r"|asked|told(?!_apart)|mend(?:ed|s)?|anew|beside|came_of|for_ever|goes_on|go_on)(?:_\w*)?)\("
)
"""Names of tests with phrases of the list."""


def phrases_in(texts: Iterable[str]) -> list[str]:
    """Return each phrase of the list that occurs, with the words around it and the replacement."""
    return [
        f"…{text[max(0, match.start() - 40) : match.end() + 40]}…: write {meaning!r}"
        for text in texts
        for pattern, meaning in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]


def texts_of(source: str) -> list[str]:
    """Return a module's strings, docstrings and comments."""
    nodes = ast.walk(ast.parse(source))
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return strings + [token.string for token in tokens if token.type == tokenize.COMMENT]


def prose_of(source: str) -> list[str]:
    """Return a module's docstrings, including those of variables, and its comments."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(getattr(node, "body", None), list)]
    values = [statement.value for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    docstrings = [node.value for node in values if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else ()
    return docstrings + [token.string for token in tokens if token.type == tokenize.COMMENT]


def names_of(source: str) -> set[str]:
    """Return the names that a module gives to variables, parameters, fields and functions, without outer underscores."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name.strip("_") for name in names}


def faulty_names(source: str) -> set[str]:
    names = names_of(source)
    return names & NOT_NOUNS | {name for name in names if NOT_PARTS & {*name.lower().split("_")}}


def may_have_phrases(source: str) -> bool:
    """Return whether a module is worth parsing: parsing all of them takes most of a minute."""
    joined = re.sub(r"\"\s*\n\s*[rf]*\"", "", source)
    return bool(phrases_in([joined]) or re.search(r"[\"']\s*(?:What|Whether|Of|That) ", source))


def faults_of(path: Path, texts: Iterable[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {phrase}" for phrase in phrases_in(texts)]


@pytest.mark.parametrize("folder", SOURCES)
def test_sources_are_plain_english(folder: str) -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    suspects = {path: source for path, source in sources.items() if may_have_phrases(source)}
    faults = [fault for path, source in suspects.items() for fault in faults_of(path, texts_of(source))]
    assert not faults, "\n".join(faults)


def test_tests_are_plain_english() -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
    # Everything that may be prose first, because parsing all tests takes a quarter of a minute.
    candidates = {path: re.findall(r'(?s)""".*?"""|#[^\n]*', source) for path, source in sources.items()}
    texts = {path: [text.strip('"') for text in strings] for path, strings in candidates.items()}
    suspects = [path for path, strings in texts.items() if phrases_in(strings)]
    faults = [fault for path in suspects for fault in faults_of(path, prose_of(sources[path]))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("folder", SOURCES)
def test_names_are_nouns(folder: str) -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    # Only where one is followed by what assigns, because parsing all modules takes seconds.
    assigned = re.compile(
        rf"\b_?(?:{'|'.join(NOT_NOUNS)})\b(?:, [\w*.]+)*\s*(?:[-+|&:]?=(?!=)|:\s|\bin\b|[,()])"
        rf"|(?i:(?:{'|'.join(NOT_PARTS)})_\w|\w_(?:{'|'.join(NOT_PARTS)}))"
    )
    suspects = {path: source for path, source in sources.items() if assigned.search(source)}
    faults = {str(path.relative_to(ROOT)): faulty_names(source) for path, source in suspects.items()}
    assert not {path: names for path, names in faults.items() if names}, "name them by what they are"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("found = 1", {"found"}),
        ("for number, one in enumerate(x): pass", {"one"}),
        ("if (given := x): pass", {"given"}),
        ("self._known = self.told_at = 1", {"known", "told_at"}),
        ("def _found(asked_model): pass", {"found", "asked_model"}),
        ("call(found=1, known=x.known, asked=x.asked_at)", set()),
    ],
)
def test_faulty_names_are_found(line: str, names: set[str]) -> None:
    assert faulty_names(f"class Thing:\n    each: int\ndef function(told):\n    {line}") == names | {"each", "told"}


def test_names_of_tests_are_plain_english() -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
    faults = {str(path.relative_to(ROOT)): OLD_TESTS.findall(source) for path, source in sources.items()}
    assert not {path: names for path, names in faults.items() if names}, "name them in the words of `PHRASES`"


@pytest.mark.parametrize(
    ("name", "is_old"),
    [
        ("test_row_is_no_row", True),
        ("test_loss_is_told", True),
        ("test_base_is_asked", True),
        ("test_job_goes_on", True),
        ("test_run_is_no_longer_exact_and_kinds_are_told_apart", False),
        ("test_rows_are_not_errors_and_the_job_continues", False),
    ],
)
def test_old_names_of_tests_are_found(name: str, is_old: bool) -> None:
    assert bool(OLD_TESTS.search(f"def {name}() -> None:")) is is_old


def test_pages_are_plain_english() -> None:
    faults = [fault for page in [*PAGES, *READMES] for fault in faults_of(page, [QUOTED.sub("", page.read_text())])]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise ValueError(f"{name!r} is no"\n    " name")', 1),
        ('"""What came of it."""', 2),
        ("x = 1  # nobody reads it", 1),
        ('"""One.\n\nThere is\nnone. Of two one is left."""', 2),
        ('x = "It is no longer valid; no more than two. Of course. What is a bug?"', 0),
        ("told = anew.mend()", 0),
    ],
)
def test_phrases_are_found(source: str, count: int) -> None:
    assert len(phrases_in(texts_of(source))) == count
    assert may_have_phrases(source) or not count


def test_strings_of_tests_are_data() -> None:
    source = '"""What came of it."""\nx = "nobody"  # nobody\n"""Whether it is."""\ndef f():\n    """There is none."""'
    assert len(phrases_in(prose_of(source))) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_retired_word_occurs(page: Path) -> None:
    prose = QUOTED.sub("", page.read_text())
    for pattern, meaning in RETIRED.items():
        words = re.findall(rf"\b(?:{pattern})\b", prose, re.IGNORECASE)
        assert not words, f"{page.name}: {words}: write {meaning!r}"
