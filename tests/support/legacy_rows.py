"""Rows as releases before tenants wrote them."""

from __future__ import annotations

from sqlalchemy import text

from shared.database.connection import Database

JOB = (
    "INSERT INTO jobs (id, kind, state, owner, request_digest, base_model, name, contract, plan, preflight, extra, labels,"
    " attempt, failures, progress, result, version, created_at, idempotency_key)"
    " VALUES ('ftjob-1', 'finetune', 'succeeded', 'default', '1', 'tiny', 'demo', '{}', '{}', '{}', '{}', '{}',"
    " 1, 0, '{}', '{}', 1, 1000, 'key-1')"
)
ADAPTER = (
    "INSERT INTO adapters (id, digest, base_model, job_id, step, final, published, manifest, metrics, certificates,"
    " created_at) VALUES ('demo@{number}', 'd', 'tiny', 'ftjob-1', {number}, true, true, '{{}}', '{{}}', '{{}}', 1000)"
)
FILE = (
    "INSERT INTO files (id, filename, purpose, bytes, sha256, created_at)"
    " VALUES ('file-1', 'rows.jsonl', 'fine-tune', 1, 'a', 1000)"
)
KEY = "INSERT INTO api_keys (id, name, secret_sha256, created_at) VALUES ('key-0', 'old', '{digest}', 1000)"
ALIAS = "INSERT INTO aliases (name, adapter_id, moved_at) VALUES ('prod', 'demo@1', 1000)"


def write_rows(database: Database, secret_sha256: str = "0" * 64) -> None:
    """A job with two adapters, a file, a key and an alias."""
    adapters = [ADAPTER.format(number=number) for number in (1, 2)]
    with database.write() as session:
        for statement in (JOB, *adapters, FILE, KEY.format(digest=secret_sha256), ALIAS):
            session.execute(text(statement.replace(":", "\\:")))
