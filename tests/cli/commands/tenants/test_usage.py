"""``mens usage`` against a real API on a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.client import connection
from cli.commands.tenants import usage
from shared.database.deletions import Deletions
from shared.database.overview import costs
from shared.database.tenancy import SHARED, Role
from shared.database.usage import Amount, UsageAccount
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation, Command

PERIOD = ("--from", "2026-11-01", "--to", "2026-11-02")

pytestmark = pytest.mark.network


@pytest.fixture
def mens(installation: CliInstallation) -> Command:
    """Runs ``mens usage`` with the key ci, which used two models on two days, and returns its output."""
    key = installation.become("ci")
    accounts = [
        UsageAccount(f"2026-11-{day:02}", key.id, model, key.tenant) for day in (1, 2) for model in ("tiny", "demo@1")
    ]
    installation.services.usage.add({account: Amount(1, 10, 4, 2) for account in accounts})
    return lambda *arguments, code=0: installation.mens("usage", *arguments, code=code).replace(key.id, "KEY")


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


def test_costs_have_gpu_time_and_tokens(mens: Command) -> None:
    assert mens(*PERIOD, "--costs") == (
        "2026-11-01\tci\tdemo@1\t0\t0.0\t1\t10\t4\t2\n2026-11-01\tci\ttiny\t0\t0.0\t1\t10\t4\t2\n"
        "2026-11-02\tci\tdemo@1\t0\t0.0\t1\t10\t4\t2\n2026-11-02\tci\ttiny\t0\t0.0\t1\t10\t4\t2"
    )
    assert json.loads(mens(*PERIOD, "--costs", "--by", "key", "--json"))[0]["requests"] == 4
    by_model = mens(*PERIOD, "--costs", "--by", "model,job")
    assert by_model == "demo@1\t\t0\t0.0\t2\t20\t8\t4\ntiny\t\t0\t0.0\t2\t20\t8\t4"
    assert "neither --key nor --model" in mens("--costs", "--model", "tiny", code=2)


def test_alias_stands_for_its_targets(mens: Command, installation: CliInstallation) -> None:
    installation.register(*(new_adapter(f"demo@{number}") for number in (1, 2, 3)))
    installation.mens("aliases", "split", "prod", "demo@1=90", "demo@2=10", "--shadow", "demo@3")
    key = installation.services.keys.all()[-1]
    for model in ("demo@2", "demo@3"):
        installation.services.usage.add({UsageAccount("2026-11-02", key.id, model, key.tenant): Amount(1, 7, 0, 1)})
    note, *lines = mens(*PERIOD, "--model", "prod", "--by", "day").splitlines()
    assert note.startswith("note: usage is recorded by adapter: this shows demo@1, demo@2 under any name")
    assert lines == ["2026-11-01\t1\t10\t4\t2", "2026-11-02\t2\t17\t4\t3"]
    _, *lines = mens(*PERIOD, "--model", "prod", "--by", "model").splitlines()
    assert lines == ["demo@1\t2\t20\t8\t4", "demo@2\t1\t7\t0\t1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*PERIOD, "--key", "alice"), "No usage by ALICE from 2026-11-01 to 2026-11-02."),
        (("--model", "tiny", "--from", "2027-01-01"), "No usage of tiny from 2027-01-01."),
        (("--model", "tiny", "--to", "2026-10-01"), "No usage of tiny to 2026-10-01."),
        (("--from", "2027-01-01"), "No usage from 2027-01-01."),
    ],
)
def test_empty_result_is_reported(
    mens: Command, installation: CliInstallation, arguments: tuple[str, ...], expected: str
) -> None:
    result = installation.invoke("usage", *arguments)
    assert (result.stdout, result.stderr.replace(installation.key.id, "ALICE")) == ("", expected + "\n")
    assert installation.invoke("usage", *arguments, "--json").stdout == "[]\n"


def test_key_is_given_by_id_or_name(mens: Command, installation: CliInstallation) -> None:
    ci = installation.services.keys.all()[-1]
    everything = "4\t40\t16\t8"
    assert mens(*PERIOD, "--by", "", "--key", "ci") == mens(*PERIOD, "--by", "", "--key", ci.id) == everything
    installation.become("other")
    installation.services.keys.revoke(ci.id)
    assert mens(*PERIOD, "--by", "", "--key", "ci") == everything, "the revoked key that had the name"
    installation.services.keys.create("ci")
    assert mens(*PERIOD, "--by", "", "--key", "ci").startswith("No usage by key-"), "now another key has it"
    installation.services.keys.revoke(installation.services.keys.all()[-1].id)
    assert mens("--key", "ci", code=1).startswith(
        "error: ID_AMBIGUOUS: 2 keys had the name 'ci'. Give the id instead of the name."
    )
    for unknown in ("tippo", "key-" + "0" * 26):
        refused = mens("--key", unknown, code=1)
        assert refused.startswith("error: KEY_NOT_FOUND: ") and f"'{unknown}'" in refused


def test_viewer_may_name_its_own_key_only(mens: Command, installation: CliInstallation) -> None:
    own = installation.become("eve", role=Role.VIEWER)
    assert mens("--key", own.id).startswith("No usage by")
    assert "ROLE_INSUFFICIENT" in mens("--key", installation.key.id, code=1)


def test_unknown_model_is_refused(mens: Command, installation: CliInstallation) -> None:
    assert mens("--model", "tyni", code=1).startswith("error: MODEL_NOT_FOUND: The model 'tyni' does not exist.")
    installation.register(new_adapter("late@1"))
    assert mens(*PERIOD, "--model", "late@1") == "No usage of late@1 from 2026-11-01 to 2026-11-02."
    Deletions(installation.services.database, SHARED).begin("late@1")
    assert mens("--model", "late@1") == "No usage of late@1 in the last 30 days."


def test_adapter_prefix_is_resolved(mens: Command, installation: CliInstallation) -> None:
    installation.register(new_adapter("demo@1"), new_adapter("other@12"))
    assert mens(*PERIOD, "--by", "day", "--model", "demo@") == "2026-11-01\t1\t10\t4\t2\n2026-11-02\t1\t10\t4\t2"


def test_operator_reads_usage_of_a_tenant(mens: Command, installation: CliInstallation) -> None:
    installation.services.keys.create("alias-of-nobody", "empty")
    bot, _ = installation.services.keys.create("bot", "acme")
    installation.services.usage.add({UsageAccount("2026-11-01", bot.id, "theirs", "acme"): Amount(1, 5, 0, 5)})
    for named in ((), ("--key", "bot"), ("--model", "theirs")):
        assert mens(*PERIOD, *named, "--by", "", "--tenant", "acme") == "1\t5\t0\t5"
    assert "KEY_NOT_FOUND" in mens("--key", "bot", code=1)
    assert "MODEL_NOT_FOUND" in mens("--model", "theirs", "--tenant", "empty", code=1)


def test_all_pages_are_read(mens: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mens(*PERIOD)
    costs = mens(*PERIOD, "--costs")
    limits = []

    def call(*words: str | None, params: dict[str, Any]) -> Any:
        limits.append(params["limit"])
        return connection.call(*words, params=params)

    monkeypatch.setattr(usage, "call", call)
    assert mens(*PERIOD, "--costs") == costs
    assert limits == [1000], "each page adds up the whole period again, so they are as long as the API allows"
    monkeypatch.setattr(usage, "PAGE", 1)
    assert mens(*PERIOD) == whole
    assert mens(*PERIOD, "--costs") == costs


def test_json(mens: Command) -> None:
    [line] = json.loads(mens(*PERIOD, "--by", "key", "--json"))
    assert (line["key_name"], line["requests"], line["prompt_tokens"]) == ("ci", 4, 40)


def test_api_error_is_shown(mens: Command) -> None:
    assert "grouped by 'hour'" in mens("--by", "hour", code=1)


def test_columns_of_costs_are_those_of_the_api() -> None:
    assert list(usage.COST_COLUMNS.items()) == list(costs.COST_COLUMNS.items())
