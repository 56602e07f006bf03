"""Assigned policies and receipts of adapters, as in an installation's database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from shared.database.connection import Database
from shared.database.gates.policies import Assignment, Author, Policies
from shared.database.gates.receipts import NewReceipt, StoredReceipt
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.tenancy import SHARED
from shared.gates.policy_file import policy_digest, read_policy
from tests.support.builders import claimed

ADMIN, TRAINER = Author(id="key-a", name="ada", is_admin=True), Author(id="key-t", name="tom", is_admin=False)
STRICT = 'version: "1"\ngates:\n  truncation: {}\n'
LAX = 'version: "1"\ngates:\n  truncation: {block: false}\n'


def digest_of(source: str) -> str:
    """The digest of a policy's file."""
    return policy_digest(read_policy(source))


def store(database: Database, name: str, source: str, tenant: str = SHARED, by: Author = ADMIN) -> str:
    """Store a policy under a name; returns its digest."""
    policy = read_policy(source)
    fields = policy.model_dump(mode="json")
    return Policies(database, tenant).store(name, policy_digest(policy), fields, source, by).digest


def govern(
    database: Database, scope: str, source: str = STRICT, tenant: str = SHARED, name: str = "strict", by: Author = ADMIN
) -> Assignment:
    """Store a policy and assign it."""
    store(database, name, source, tenant, by)
    found = Policies(database, tenant).assign(scope, name, by, "because")
    assert found
    return found


def receipt(
    database: Database, adapter: str, incumbent: str | None = None, tenant: str = SHARED, **changes: Any
) -> StoredReceipt:
    """Store a receipt for an adapter, valid for a day, as if a job of the tenant had written it; a tuple gives an
    adapter and its digest.
    """
    digest = changes.pop("digest", "d" * 64)
    leases = Leases(database, 60)
    row = {
        "name": "truncation",
        "status": "passed",
        "passed": True,
        "block": True,
        "message": "0.1; at most 0.5 is asked",
    }
    if not changes.get("passed", True):
        row |= {"status": "failed", "passed": False, "message": "0.9; at most 0.5 is asked, 0.4 above it"}
    with database.read() as session:
        now = database.now(session)
    fields = {
        "adapter_id": adapter,
        "adapter_digest": digest,
        "incumbent_id": incumbent,
        "incumbent_digest": incumbent and "d" * 64,
        "policy_digest": digest_of(changes.pop("source", STRICT)),
        "serving_digest": "b" * 64,
        "passed": True,
        "valid_until": now + timedelta(days=1),
        "receipt": {"gates": [row]},
    }
    lease = claimed(Jobs(database, tenant), leases)
    stored = leases.add_receipt(lease, NewReceipt.model_validate(fields | changes))
    leases.finish(lease, {})
    return stored
