"""``mens replicas`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from api.inference.replicas.pool import ReplicaState
from cli.commands.replicas import ago
from shared.database.tenancy import Role
from shared.replicas import ReplicaCapabilities, replica_name
from tests.support.cli_installation import CliInstallation

URLS = ["http://127.0.0.1:9", "http://127.0.0.1:10"]

pytestmark = pytest.mark.network


def test_replicas_are_listed_with_their_last_error(installation: CliInstallation) -> None:
    replicas = installation.services.replicas
    replicas.update(URLS)
    replicas.all[0].refused_connection("ConnectError:\n no route")
    assert replicas.all[0].last_error_at
    replicas.all[0].last_error_at -= 200
    replicas.all[1].state, replicas.all[1].in_flight = ReplicaState.UP, 3
    replicas.all[1].serves = ReplicaCapabilities(base="tiny", served_digest="d" * 64, max_lora_rank=16)
    one, other = map(replica_name, URLS)
    lines = [f"{one}\t{URLS[0]}\t\tdown\t0\tConnectError: no route, 3 min ago", f"{other}\t{URLS[1]}\ttiny\tup\t3\t"]
    assert installation.invoke("replicas").stdout.splitlines() == lines
    first, second = json.loads(installation.mens("replicas", "--json"))
    facts = {
        "url": URLS[0],
        "base": None,
        "base_digest": None,
        "state": "down",
        "in_flight": 0,
        "last_error": "ConnectError:\n no route",
    }
    assert first == {"name": one, **facts, "last_error_at": replicas.all[0].last_error_at}
    assert (second["last_error"], second["last_error_at"]) == (None, None)
    assert (second["base"], second["base_digest"]) == ("tiny", "d" * 64)


def test_no_replica(installation: CliInstallation) -> None:
    result = installation.invoke("replicas")
    assert (result.stdout, "MENS_SERVING_URLS" in result.stderr) == ("", True)
    assert installation.invoke("replicas", "--json").stdout == "[]\n"


def test_only_an_operator_sees_replicas(installation: CliInstallation) -> None:
    installation.become("ada", "acme", Role.ADMIN)
    assert "ROLE_INSUFFICIENT" in installation.mens("replicas", code=1)


@pytest.mark.parametrize(
    ("seconds", "age"), [(-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_age_is_shown_in_the_largest_unit(seconds: float, age: str) -> None:
    assert ago(seconds) == f"{age} ago"
