"""``mens usage`` against a real API on a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.main import create_app
from api.migrate import migrate
from api.settings import ApiSettings
from cli import usage
from cli.main import app
from shared.usage import Account, Amount
from tests.api.test_gateway import serve

Command = Callable[..., str]
PERIOD = ("--from", "2026-11-01", "--to", "2026-11-02")

pytestmark = pytest.mark.network


@pytest.fixture
def mens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs ``mens`` with the key ci, which used two models on two days, and returns what it says."""
    api = create_app(ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0"))
    services = api.state.services
    migrate(services.settings.database_url)
    key, secret = services.keys.create("ci")
    accounts = [
        Account(f"2026-11-{day:02}", key.id, model, key.tenant) for day in (1, 2) for model in ("tiny", "demo@1")
    ]
    services.usage.add({account: Amount(1, 10, 4, 2) for account in accounts})

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["usage", *arguments])
        assert result.exit_code == code, result.output
        return result.output.strip().replace(key.id, "KEY")

    for url in serve(api):
        monkeypatch.setenv("MENS_HOME", str(tmp_path))
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", secret)
        yield run


def test_lines_of_a_period(mens: Command) -> None:
    assert mens(*PERIOD).splitlines() == [
        "2026-11-01\tci\tKEY\tdemo@1\t1\t10\t4\t2",
        "2026-11-01\tci\tKEY\ttiny\t1\t10\t4\t2",
        "2026-11-02\tci\tKEY\tdemo@1\t1\t10\t4\t2",
        "2026-11-02\tci\tKEY\ttiny\t1\t10\t4\t2",
    ]


def test_groups_and_filters(mens: Command) -> None:
    assert mens(*PERIOD, "--by", "model, key") == "ci\tKEY\tdemo@1\t2\t20\t8\t4\nci\tKEY\ttiny\t2\t20\t8\t4"
    assert mens(*PERIOD, "--by", "day", "--model", "tiny") == "2026-11-01\t1\t10\t4\t2\n2026-11-02\t1\t10\t4\t2"
    assert mens(*PERIOD, "--by", "") == "4\t40\t16\t8"
    assert mens(*PERIOD, "--key", "key-nobody") == ""


def test_all_pages(mens: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mens(*PERIOD)
    monkeypatch.setattr(usage, "PAGE", 1)
    assert mens(*PERIOD) == whole


def test_json(mens: Command) -> None:
    [line] = json.loads(mens(*PERIOD, "--by", "key", "--json"))
    assert (line["key_name"], line["requests"], line["prompt_tokens"]) == ("ci", 4, 40)


def test_the_api_says_what_is_wrong(mens: Command) -> None:
    assert "grouped by 'hour'" in mens("--by", "hour", code=1)
