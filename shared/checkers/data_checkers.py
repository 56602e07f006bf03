"""Check JSON with Python's own parser and SQL with SQLite's: statements are compiled, and no row is read or written."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from shared.checkers.checker import Check, Diagnostic
from shared.checkers.unit import Unit, Units, difficulty_of

SQL_STEPS = 1_000_000
"""Limit of SQLite's computation for a table's definition, in steps of its virtual machine."""
MAX_TABLES = 100
"""Largest number of earlier table definitions that a statement includes as its context; with more, it includes none."""
CLAUSES = (
    "select", "distinct", "join", "where", "group by", "having", "order by", "limit", "union", "intersect", "except", "with", "over",
    "case", "exists", "insert", "update", "delete", "values", "returning", "create table", "create view", "create index",
    "create trigger", "alter table", "primary key", "foreign key", "references", "check", "default",
)  # fmt: skip
_CLAUSE = re.compile(r"\b(" + "|".join(clause.replace(" ", r"\s+") for clause in CLAUSES) + r")\b", re.IGNORECASE)
_NOT_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
_NAME_FAULT = re.compile(r"no such |ambiguous column|has no column|already exists")
_COMMENTS = re.compile(r"(?:\s*(?:--[^\n]*(?:\n|$)|/\*.*?\*/))*\s*", re.DOTALL)
_COMMENT_MARKS = re.compile(r"^\s*(?:--+|/\*+|\*(?!/))?[ \t]*|[ \t]*\*/\s*$", re.MULTILINE)
_DEFINITION = re.compile(r"\s*(create|alter|drop)\b", re.IGNORECASE)
_LITERAL = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")")
_FORBIDDEN = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA})


class JsonChecker:
    """Accepts one JSON value and nothing else; NaN and infinities are refused."""

    kinds = ("object", "array", "string", "boolean", "number", "null")

    def check(self, text: str) -> Check:
        """See :class:`shared.checkers.checker.Checker`."""
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            return Check((Diagnostic("syntax", error.msg, error.lineno, error.colno),))
        except ValueError as error:
            return Check((Diagnostic("syntax", str(error)),))
        kinds = Counter(_kinds(value))
        return Check((), kinds, kinds.total())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kinds(value: Any) -> Iterator[str]:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    waiting = [value]
    while waiting:
        member = waiting.pop()
        yield names.get(type(member), "null")
        waiting.extend(member.values() if isinstance(member, dict) else member if isinstance(member, list) else ())


class SqlChecker:
    """Checks statements in SQLite's dialect. Tables that the code does not create itself are not looked up."""

    kinds = CLAUSES

    def check(self, text: str) -> Check:
        """See :class:`shared.checkers.checker.Checker`."""
        code = _NOT_CODE.sub(" ", text)
        clauses = Counter(re.sub(r"\s+", " ", clause.lower()) for clause in _CLAUSE.findall(code))
        diagnostics: list[Diagnostic] = []
        database = sqlite3.connect(":memory:")
        try:
            # Without it, ATTACH would open any file that this process may read.
            database.set_authorizer(_authorize)
            # Statements that define objects are executed, and may not end: SQLite aborts one after this many steps.
            database.set_progress_handler(lambda: 1, SQL_STEPS)
            for line, statement in _statements(text):
                diagnostics.extend(_faults(database, line, statement))
                if diagnostics:
                    break
        finally:
            database.close()
        if not diagnostics and not clauses:
            diagnostics = [Diagnostic("syntax", "it contains no statement")]
        return Check(tuple(diagnostics), clauses, clauses.total())

    def units(self, text: str) -> Units:
        """See :class:`shared.checkers.unit.UnitFinder`: the statements, each with the comment before it and the
        definitions of tables that precede it.
        """
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if faults := self.check(text).diagnostics:
            return Units((), faults)
        queries: list[Unit] = []
        tables: list[str] = []
        for line, piece in _statements(text):
            comments = _COMMENTS.match(piece)
            assert comments
            statement = piece[comments.end() :].strip()
            first = line + comments[0].count("\n")
            # Bounds the work for a file of thousands of definitions, each of which would hold all earlier ones.
            context = "\n".join(tables) if len(tables) <= MAX_TABLES else ""
            queries.append(_query(statement, first, _COMMENT_MARKS.sub("", comments[0]).strip(), context))
            if _DEFINITION.match(statement):
                tables.append(statement)
        return Units(tuple(queries))


def _query(statement: str, first: int, comment: str, context: str) -> Unit:
    code = _NOT_CODE.sub(" ", statement)
    clauses = Counter(re.sub(r"\s+", " ", clause.lower()) for clause in _CLAUSE.findall(code))
    pieces = _LITERAL.split(re.sub(r"--[^\n]*|/\*.*?\*/", " ", statement, flags=re.DOTALL))
    words = [piece if number % 2 else " ".join(piece.lower().split()) for number, piece in enumerate(pieces)]
    nesting = len(re.findall(r"\(\s*(?:select|with)\b", code, re.IGNORECASE))
    return Unit(
        "query", " ".join(code.split()[:2]).lower(), "sql", statement, first, first + statement.count("\n"),
        docstring=" ".join(comment.split()),
        context=context,
        constructs=clauses,
        size=clauses.total(),
        ast_hash=hashlib.sha256("\0".join(words).encode(errors="surrogatepass")).hexdigest(),
        difficulty=difficulty_of(clauses.total(), nesting, len(clauses)),
    )  # fmt: skip


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Split into statements, with the lines where they begin; the last one may lack its semicolon."""
    line, begin = 1, 1
    statement = ""
    for piece in re.split(r"(?<=;)", text):
        statement += piece
        line += piece.count("\n")
        if sqlite3.complete_statement(statement):
            yield begin, statement
            statement, begin = "", line
    if _NOT_CODE.sub("", statement).strip():
        yield begin, statement


def _faults(database: sqlite3.Connection, line: int, statement: str) -> Iterator[Diagnostic]:
    try:
        database.execute("EXPLAIN " + statement)
        if _DEFINITION.match(_NOT_CODE.sub(" ", statement)):
            # Later statements name the objects that this one creates.
            database.execute(statement)
    except sqlite3.OperationalError as error:
        yield from _operational_fault(database, line, str(error))
    except sqlite3.ProgrammingError as error:
        # Ignore missing values of parameters: statements compile without them.
        if "binding" not in str(error):
            yield Diagnostic("syntax", str(error), line)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        yield Diagnostic("syntax", str(error), line)


def _operational_fault(database: sqlite3.Connection, line: int, message: str) -> Iterator[Diagnostic]:
    if message == "interrupted":
        yield Diagnostic("too_complex", "a definition takes too long to compute", line)
    elif "no such table" not in message or _makes_tables(database):
        yield Diagnostic("name" if _NAME_FAULT.search(message) else "syntax", message, line)


def _makes_tables(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _authorize(action: int, *_names: object) -> int:
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK
