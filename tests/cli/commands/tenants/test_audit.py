"""``mens audit`` against a real API on a real socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.database.tenancy import Role
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network


def test_what_a_user_did_is_listed(installation: CliInstallation) -> None:
    installation.register(new_adapter("helper@1"))
    installation.mens("keys", "create", "bot", "--tenant", "acme", "--role", "viewer", "--rpm", "30")
    installation.mens("keys", "limit", "bot", "--tenant", "acme", "--rpm", "60")
    installation.mens("tenants", "limit", "acme", "--running", "2")
    installation.mens("aliases", "set", "helper", "helper@1", "--reason", "first")
    rows = [line.split("\t")[2:] for line in installation.mens("audit", "list", "--actor", "alice").splitlines()]
    assert [(tenant, who, action) for tenant, who, action, *_ in rows] == [
        ("shared", "alice", "alias.moved"),
        ("acme", "alice", "quota.changed"),
        ("acme", "alice", "key.changed"),
        ("acme", "alice", "key.created"),
    ]
    assert [row[4] for row in rows] == [
        "points_to helper@1, reason first",
        "running_jobs 2",
        "requests_per_minute 30 → 60",
        "name bot, role viewer, requests_per_minute 30",
    ]
    found = json.loads(installation.mens("audit", "list", "--action", "alias", "--object", "helper", "--json"))
    assert found[0]["changes"]["reason"]["after"] == "first"
    installation.become("ada", "acme", Role.ADMIN)
    assert "shared" not in installation.mens("audit", "list")


def test_an_export_continues_where_it_ended_and_is_pruned(installation: CliInstallation, tmp_path: Path) -> None:
    installation.mens("keys", "create", "bot")
    first = installation.invoke("audit", "export")
    last = json.loads(first.stdout.splitlines()[-1])["seq"]
    assert first.stderr == f"{last} events; continue with --after {last}\n"
    installation.mens("keys", "revoke", "bot")
    (line,) = installation.invoke("audit", "export", "--after", str(last)).stdout.splitlines()
    assert json.loads(line)["action"] == "key.revoked"
    file = tmp_path / "audit.jsonl"
    file.write_text(line)
    assert "AUDIT_EXPORT_DIFFERS" in installation.mens("audit", "prune", str(file), code=1)
    file.write_text(first.stdout)
    assert installation.mens("audit", "prune", str(file)) == f"deleted: {last} events up to {last}"
    kept = [json.loads(each)["action"] for each in installation.invoke("audit", "export").stdout.splitlines()]
    assert kept == ["key.revoked", "audit.pruned"]


@pytest.mark.parametrize("content", ["", "{}", "nonsense"])
def test_what_is_not_an_export_is_not_pruned(installation: CliInstallation, tmp_path: Path, content: str) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text(content)
    assert str(file) in installation.mens("audit", "prune", str(file), code=1)


def test_a_command_in_the_database_is_its_users(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "robin")
    with monkeypatch.context() as here:
        here.delenv("MENS_API_URL")
        installation.mens("keys", "create", "first")
    (event,) = json.loads(installation.mens("audit", "list", "--limit", "1", "--json"))
    assert (event["actor_kind"], event["actor"].partition("@")[0], event["address"]) == ("command", "robin", None)
