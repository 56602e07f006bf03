"""JSON and SQL are checked by the parsers that will read them, and no statement has an effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.checkers.data_checkers import JsonChecker, SqlChecker

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@settings(max_examples=20)
@given(JSON)
def test_json_is_json_and_a_part_of_it_is_not(value: object) -> None:
    text = json.dumps(value)
    found = JsonChecker().check(text)
    assert found.compiles
    assert found.size == sum(found.constructs.values()) >= 1
    assert not JsonChecker().check(text + " ,").compiles


def test_faults_of_json_have_places() -> None:
    fault = JsonChecker().check('{"a": 1,\n "b" 2}').diagnostics[0]
    assert (fault.code, fault.line, fault.column) == ("syntax", 2, 6)
    assert JsonChecker().check("NaN").diagnostics[0].message == "NaN is not JSON"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM users WHERE id = ? ORDER BY name LIMIT 3",
        "SELECT name FROM users WHERE id = :id;",
        "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1); SELECT a FROM t;",
        "-- first\nCREATE TABLE t (a);\nCREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM t; SELECT 1; END;",
        "SELECT 'a;b', \"c\" FROM t -- end",
    ],
)
def test_statements_that_sqlite_takes(text: str) -> None:
    found = SqlChecker().check(text)
    assert found.compiles, found.diagnostics
    assert found.size >= 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELEC name FROM users", 'line 1: near "SELEC": syntax error (syntax)'),
        ("SELECT 1;\nSELECT FROM t;", 'line 1: near "FROM": syntax error (syntax)'),
        ("CREATE TABLE t (a); SELECT b FROM t", "line 1: no such column: b (name)"),
        ("CREATE TABLE t (a); SELECT a FROM u", "line 1: no such table: u (name)"),
        ("ATTACH 'other' AS o", "line 1: not authorized (syntax)"),
        ("PRAGMA writable_schema = 1", "line 1: not authorized (syntax)"),
        ("-- nothing", "it contains no statement (syntax)"),
    ],
)
def test_faults_of_sql(text: str, found: str) -> None:
    faults = SqlChecker().check(text).diagnostics
    assert len(faults) == 1
    assert str(faults[0]).split(":", 1)[-1].strip() == found.split(":", 1)[-1].strip()


def test_a_definition_without_end_is_cut_off() -> None:
    text = "CREATE TABLE x AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c"
    assert SqlChecker().check(text).diagnostics[0].code == "too_complex"


def test_statements_touch_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SqlChecker().check("ATTACH 'made.db' AS m; CREATE TABLE m.t (a);")
    SqlChecker().check("VACUUM INTO 'made.db'; CREATE TABLE t (a);")
    assert not list(tmp_path.iterdir())


SCRIPT = """\
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT);

-- How many people
-- have a name?
SELECT count(*) FROM people WHERE name IS NOT NULL;
/* The names, sorted. */
SELECT name FROM (SELECT name FROM people) ORDER BY name
"""


def test_statements_are_units_with_the_comment_and_the_tables_before_them() -> None:
    table, count, names = SqlChecker().units(SCRIPT).units
    assert (table.name, table.context, table.docstring) == ("create table", "", "")
    assert count.docstring == "How many people have a name?"
    assert count.context == table.code == "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT);"
    assert (count.first_line, count.last_line) == (5, 5)
    assert (names.docstring, names.code[-13:]) == ("The names, sorted.", "ORDER BY name")
    assert names.difficulty > count.difficulty


def test_statements_that_differ_in_layout_only_are_one() -> None:
    def hash_of(text: str) -> str:
        return SqlChecker().units(text).units[0].ast_hash

    assert hash_of("select 1,  'A b' -- one\n") == hash_of("SELECT 1, 'A b'")
    assert hash_of("select 1, 'A b'") != hash_of("select 1, 'a b'")


def test_a_script_with_a_fault_has_no_units() -> None:
    found = SqlChecker().units(SCRIPT + "; SELEC 1;")
    assert not found.units
    assert "syntax error" in found.diagnostics[0].message
