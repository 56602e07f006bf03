"""The command line's HTTP client: address, key and tenant of its requests."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import typer

from cli.client.connection import Connection, connect, unreachable


def test_tenant_header_is_taken_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_TENANT", "acme")
    with Connection("http://127.0.0.1:9", "secret").client() as client:
        assert client.headers["X-Mens-Tenant"] == "acme"
        assert client.headers["Authorization"] == "Bearer secret"


def test_no_tenant_header_without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MENS_TENANT", raising=False)
    with Connection("http://127.0.0.1:9", "secret").client() as client:
        assert "X-Mens-Tenant" not in client.headers


def test_tenant_of_a_command_wins_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_TENANT", "acme")
    connection = Connection("http://127.0.0.1:9", "secret")
    with connection.client(tenant="other") as other, connection.client(tenant="") as own:
        assert other.headers["X-Mens-Tenant"] == "other"
        assert "X-Mens-Tenant" not in own.headers


@pytest.mark.parametrize("given", ["http://h:8000/v1", "http://h:8000/v1/", "http://h:8000//", " http://h:8000"])
def test_base_url_of_openai_clients_is_accepted(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Connection("http://h:8000", "secret").save(tmp_path)
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    monkeypatch.delenv("MENS_API_KEY", raising=False)
    monkeypatch.setenv("MENS_API_URL", given)
    assert connect() == Connection("http://h:8000", "secret")


@pytest.mark.parametrize("given", ["h:8000", "//h", "http://", "ftp://h"])
def test_url_without_http_scheme_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_API_URL", given)
    with pytest.raises(typer.Exit):
        connect()
    assert f"MENS_API_URL is '{given}'; it must begin with http:// or https://" in capsys.readouterr().err


def test_saved_key_is_sent_to_its_own_address_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Connection("http://127.0.0.1:9", "secret")
    here.save(tmp_path)
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    monkeypatch.delenv("MENS_API_KEY", raising=False)
    for url in ("", here.url):
        monkeypatch.setenv("MENS_API_URL", url)
        assert connect() == here
    monkeypatch.setenv("MENS_API_URL", "https://elsewhere.example")
    with pytest.raises(typer.Exit):
        connect()
    assert (
        "MENS_API_KEY is not set, and https://elsewhere.example needs a key. Set MENS_API_KEY"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("MENS_API_KEY", "theirs")
    assert connect() == Connection("https://elsewhere.example", "theirs")


@pytest.mark.parametrize(
    ("url", "reason", "said"),
    [
        (
            "https://127.0.0.1:8000",
            "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
            "does not respond (it does not speak https). Set MENS_API_URL to http://127.0.0.1:8000.",
        ),
        (
            "http://nohost:8000",
            "[Errno -2] Name or service not known",
            "does not respond (the host nohost is not known). Check MENS_API_URL, or the names",
        ),
        ("http://nohost:8000", "[Errno -3] Temporary failure in name resolution", "the host nohost is not known"),
        ("http://10.0.0.9:8000", "timed out", "Check MENS_API_URL, and that the installation there"),
        (
            "http://127.0.0.1:8000",
            "[Errno 111] Connection refused",
            "Check that it is running; on this machine `mens up",
        ),
    ],
)
def test_remedy_of_an_api_that_does_not_respond(url: str, reason: str, said: str) -> None:
    assert said in str(unreachable(Connection(url, "key"), httpx.ConnectError(reason)))
