"""Policies on both databases."""

from __future__ import annotations

from typing import Any

from shared.database.connection import Database
from shared.database.gates.policies import Author, Policies
from tests.support.builders import at_once

AUTHOR = Author(id="key-1", name="ci", is_admin=False)
POLICY: dict[str, Any] = {"kind": "eval"}


def test_equal_policies_that_are_stored_at_once_are_one(database: Database) -> None:
    policies = Policies(database, "acme")
    for digest in ("a" * 64, "b" * 64, "c" * 64):
        stored = at_once(4, lambda _, digest=digest: policies.store("gate", digest, POLICY, "gate.yaml", AUTHOR))
        assert {policy.digest for policy in stored} == {digest}
    assert [policy.digest for policy in policies.all()] == ["c" * 64, "b" * 64, "a" * 64]
