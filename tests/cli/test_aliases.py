"""``mens aliases`` against a real API on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.main import create_app
from api.migrate import migrate
from api.settings import ApiSettings
from cli.main import app
from shared.lease import LeaseLedger
from tests.api.test_gateway import serve
from tests.shared.samples import claimed, new_adapter

Command = Callable[..., str]

pytestmark = pytest.mark.network


@pytest.fixture
def mens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Runs ``mens`` and returns what it says; the installation has the adapters demo@1, demo@2 and demo@3."""
    api = create_app(ApiSettings(home=tmp_path, broker_url="redis://127.0.0.1:9/0"))
    services = api.state.services
    migrate(services.settings.database_url)
    leases = LeaseLedger(services.database, 60)
    made = [new_adapter(f"demo@{number}", final=number == 3) for number in (1, 2, 3)]
    leases.finish(claimed(services.ledger, leases), {}, adapters=made)
    _, secret = services.keys.create("alice")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.output.strip()

    for url in serve(api):
        monkeypatch.setenv("MENS_HOME", str(tmp_path))
        monkeypatch.setenv("MENS_API_URL", url)
        monkeypatch.setenv("MENS_API_KEY", secret)
        yield run


def test_from_the_first_adapter_to_the_way_back(mens: Command) -> None:
    assert mens("aliases", "set", "prod", "demo@1", "--reason", "first") == "prod → demo@1, version 1"
    split = mens("aliases", "split", "prod", "demo@1=90", "demo@2=10", "--shadow", "demo@3", "--shadow-share", "0.25")
    assert split == "prod → demo@1 90 %, demo@2 10 % (shadow: demo@3 25 %), version 2"
    assert mens("aliases", "list") == "prod\t2\tdemo@1 90 %, demo@2 10 %\tdemo@3 25 %"
    assert "prod\talias\ttiny\tdemo@1 90 %, demo@2 10 %" in mens("models").splitlines()
    assert mens("aliases", "rollback", "prod", "--reason", "it swears") == "prod → demo@1, version 3"
    first, *_ = mens("aliases", "history", "prod").splitlines()
    version, _, verb, who, where, shadow, why = first.split("\t")
    assert (version, verb, who, where, shadow, why) == ("3", "rollback", "alice", "demo@1", "", "it swears")
    assert "rollback by alice" in mens("aliases", "show", "prod")
    assert mens("aliases", "rollback", "prod", "--to-version", "2").startswith("prod → demo@1 90 %")


def test_deleted_alias_comes_back(mens: Command) -> None:
    mens("alias", "prod", "demo@1")
    assert "mens aliases rollback prod" in mens("aliases", "delete", "prod", "--reason", "a mistake")
    assert mens("aliases", "list") == ""
    assert "(deleted)\t\ta mistake" in mens("aliases", "history", "prod")
    assert mens("aliases", "rollback", "prod") == "prod → demo@1, version 3"


def test_a_move_from_an_old_version(mens: Command) -> None:
    mens("aliases", "set", "prod", "demo@1")
    mens("aliases", "set", "prod", "demo@2", "--if-version", "1")
    refused = mens("aliases", "set", "prod", "demo@3", "--if-version", "1", code=1)
    assert refused.startswith("error: ALIAS_VERSION_CONFLICT")


@pytest.mark.parametrize("target", ["demo@1", "=5", "demo@1=", "demo@1=x", "demo@1=-5"])
def test_targets_that_are_no_targets(mens: Command, target: str) -> None:
    assert "ADAPTER=WEIGHT" in mens("aliases", "split", "prod", target, "demo@2=5", code=1)


def test_a_model_is_deleted_once_no_alias_needs_it(mens: Command) -> None:
    mens("alias", "prod", "demo@1")
    assert "MODEL_IN_USE" in mens("models", "delete", "demo@1", "--yes", code=1)
    assert "is deleted" in mens("models", "delete", "demo@2", "--yes")
    assert [line.split("\t")[0] for line in mens("models").splitlines()] == ["prod", "demo@1", "demo@3"]
