"""``mens open`` against a real API: a link that signs in once."""

from __future__ import annotations

import httpx
import pytest

from cli.client.connection import Connection
from cli.commands import open as open_command
from cli.commands.open import console_link
from shared.database.tenancy import Role
from tests.support.cli_installation import CliInstallation
from tests.support.sign_ins import CHALLENGE

pytestmark = pytest.mark.network


def code_in(installation: CliInstallation, link: str) -> str:
    address, _, code = link.partition("/#code=")
    assert address == installation.url
    return code


def test_link_signs_in_with_the_commands_key_once(installation: CliInstallation) -> None:
    key = installation.become("alice", "acme", Role.VIEWER)
    code = code_in(installation, installation.mens("open"))
    made, _ = installation.services.sign_ins.create_by_code(code, CHALLENGE, "")
    assert (made.key_id, made.key_name, made.tenant) == (key.id, "alice", "acme")


def test_browser_is_opened_only_where_somebody_sees_it(
    installation: CliInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(open_command.webbrowser, "open", lambda link: opened.append(link) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    installation.mens("open")  # its output is not a terminal
    assert opened == []


def test_console_that_is_off_is_reported(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_command, "_ways", lambda _: httpx.Response(404))
    assert "MENS_CONSOLE is off" in installation.mens("open", code=1)


def test_address_where_sign_ins_are_refused_is_reported_with_the_ways_out(
    installation: CliInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.sign_in.transport.is_loopback", lambda _: False)
    monkeypatch.setattr("api.sign_in.transport.is_secure", lambda _: False)
    output = " ".join(installation.mens("open", code=1).split())
    assert "SIGN_IN_INSECURE" in output
    assert "ssh -L" in output


def test_link_of_an_installation_that_does_not_answer_is_left_out() -> None:
    assert console_link(Connection("http://127.0.0.1:9", "mens-secret")) is None
