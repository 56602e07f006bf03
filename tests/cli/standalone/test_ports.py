"""Readiness: only status 200 counts, and proxies of the environment are not used."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.standalone import ports
from cli.standalone.ports import free_port, responds, takes_connections
from tests.support.http_stub import http_stub


def test_only_200_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http_stub(lambda _, path, *__: (200 if path == "/ready" else 503, {})) as url:
        port = int(url.rpartition(":")[2])
        assert takes_connections(port)
        assert (responds(port, "/ready"), responds(port, "/health")) == (True, False)


def test_nobody_there_is_not_ready() -> None:
    port = free_port()
    assert not takes_connections(port)
    assert not responds(port, "/ready")


@pytest.fixture
def ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which the kernel names the ports that it gives away."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "EPHEMERAL", path)
    ports._fixed_ports.cache_clear()
    yield path
    ports._fixed_ports.cache_clear()


@pytest.mark.parametrize(
    ("given_away", "chosen"),
    [
        ("32768\t60999\n", range(10_000, 32_768)),
        ("1024\t40000\n", range(40_001, 65_536)),
        ("1024\t65535\n", range(10_000, 65_536)),
        (None, range(10_000, 49_152)),
    ],
)
def test_a_free_port_is_none_that_the_kernel_gives_away(ephemeral: Path, given_away: str | None, chosen: range) -> None:
    if given_away:
        ephemeral.write_text(given_away)
    assert {free_port() in chosen for _ in range(50)} == {True}


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offered = iter([taken.getsockname()[1], port := free_port()])
        monkeypatch.setattr("cli.standalone.ports.secrets.choice", lambda _: next(offered))
        assert free_port() == port


def test_bound_port_is_not_free_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        offered = iter([server.getsockname()[1], port := free_port()])
        monkeypatch.setattr("cli.standalone.ports.secrets.choice", lambda _: next(offered))
        assert free_port() == port


def test_a_machine_on_which_nobody_can_listen_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no loopback here")

    monkeypatch.setattr("cli.standalone.ports.socket.socket.bind", refuse)
    with pytest.raises(PermissionError):
        free_port()
