"""``mens replicas`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from api.replicas import State
from cli.replicas import ago
from shared.replicas import replica_name
from shared.tenancy import Role
from tests.cli.conftest import Installation

URLS = ["http://127.0.0.1:9", "http://127.0.0.1:10"]

pytestmark = pytest.mark.network


def test_replicas_and_what_was_wrong_with_them(installation: Installation) -> None:
    replicas = installation.services.replicas
    replicas.know(URLS)
    replicas.all[0].refused("ConnectError:\n no route")
    assert replicas.all[0].last_error_at
    replicas.all[0].last_error_at -= 200
    replicas.all[1].state, replicas.all[1].in_flight = State.UP, 3
    one, other = map(replica_name, URLS)
    lines = [f"{one}\t{URLS[0]}\tdown\t0\tConnectError: no route, 3 min ago", f"{other}\t{URLS[1]}\tup\t3\t"]
    assert installation.invoke("replicas").stdout.splitlines() == lines
    first, second = json.loads(installation.mens("replicas", "--json"))
    facts = {"url": URLS[0], "state": "down", "in_flight": 0, "last_error": "ConnectError:\n no route"}
    assert first == {"name": one, **facts, "last_error_at": replicas.all[0].last_error_at}
    assert (second["last_error"], second["last_error_at"]) == (None, None)


def test_no_replica(installation: Installation) -> None:
    told = installation.invoke("replicas")
    assert (told.stdout, "MENS_SERVING_URLS" in told.stderr) == ("", True)
    assert installation.invoke("replicas", "--json").stdout == "[]\n"


def test_only_the_operator_sees_them(installation: Installation) -> None:
    installation.become("ada", "acme", Role.ADMIN)
    assert "ROLE_INSUFFICIENT" in installation.mens("replicas", code=1)


@pytest.mark.parametrize(
    ("seconds", "told"), [(-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_how_long_ago(seconds: float, told: str) -> None:
    assert ago(seconds) == f"{told} ago"
