"""The closed list of tables: everything that it names exists, and no statement bypasses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import inspect

from shared.database.audit.audited_tables import AUDITED
from shared.database.tables.base import Base

SHARED = Path(__file__).resolve().parents[4] / "shared"
BY_STATEMENT = {
    ("database/files/uploads.py", "update", "UploadRow"),  # uploads that expire
    ("database/files/uploads.py", "delete", "UploadRow"),  # those that have been over for long
    ("database/callers/keys.py", "update", "KeyRow"),  # last use
    ("database/callers/keys.py", "delete", "SignInCodeRow"),  # those of a rotated key, whose rotation is in the log
    ("database/callers/sign_ins.py", "update", "SignInRow"),  # last use
    ("database/callers/sign_ins.py", "delete", "SignInRow"),  # those that have expired
    ("database/callers/sign_ins.py", "delete", "SignInCodeRow"),
    ("database/leases.py", "update", "JobRow"),  # leases and delays of a clock that went back
    ("database/evaluation/items.py", "update", "EvalRunRow"),  # totals
    ("database/evaluation/runs.py", "delete", "EvalRunRow"),  # with its eval, whose deletion is in the log
}
"""Statements on audited tables that the recorder does not see: they are not decisions, or part of one that it sees."""


@pytest.mark.parametrize("row", AUDITED)
def test_fields_are_columns_and_secrets_are_among_them(row: type[Base]) -> None:
    columns = {attribute.key for attribute in inspect(row).column_attrs}
    table = AUDITED[row]
    assert set(table.fields) <= columns
    assert table.concealed | table.shortened.keys() <= set(table.fields)
    assert "tenant" in columns


def test_no_other_statement_changes_an_audited_table() -> None:
    names = "|".join(row.__name__ for row in AUDITED)
    found = {
        (path.relative_to(SHARED).as_posix(), verb, row)
        for path in SHARED.rglob("*.py")
        for verb, row in re.findall(
            rf"\b(update|delete|insert|insert_rows)\((?:session, )?({names})\b", path.read_text()
        )
    }
    assert found == BY_STATEMENT
