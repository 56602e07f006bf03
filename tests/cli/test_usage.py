"""``mens usage`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from cli import usage
from shared.usage import Account, Amount
from tests.cli.conftest import Command, Installation
from tests.shared.samples import new_adapter

PERIOD = ("--from", "2026-11-01", "--to", "2026-11-02")

pytestmark = pytest.mark.network


@pytest.fixture
def mens(installation: Installation) -> Command:
    """Runs ``mens usage`` with the key ci, which used two models on two days, and returns what it says."""
    key = installation.become("ci")
    accounts = [
        Account(f"2026-11-{day:02}", key.id, model, key.tenant) for day in (1, 2) for model in ("tiny", "demo@1")
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


def test_an_alias_stands_for_the_adapters_that_answer(mens: Command, installation: Installation) -> None:
    installation.register(*(new_adapter(f"demo@{number}") for number in (1, 2, 3)))
    installation.mens("aliases", "split", "prod", "demo@1=90", "demo@2=10", "--shadow", "demo@3")
    key = installation.services.keys.all()[-1]
    for model in ("demo@2", "demo@3"):
        installation.services.usage.add({Account("2026-11-02", key.id, model, key.tenant): Amount(1, 7, 0, 1)})
    note, *lines = mens(*PERIOD, "--model", "prod", "--by", "day").splitlines()
    assert note.startswith("note: usage is kept by adapter: this is that of demo@1, demo@2 under any name")
    assert lines == ["2026-11-01\t1\t10\t4\t2", "2026-11-02\t2\t17\t4\t3"]
    _, *lines = mens(*PERIOD, "--model", "prod", "--by", "model").splitlines()
    assert lines == ["demo@1\t2\t20\t8\t4", "demo@2\t1\t7\t0\t1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*PERIOD, "--key", "key-nobody"), "No usage by key-nobody from 2026-11-01 to 2026-11-02."),
        (("--model", "tyni", "--from", "2027-01-01"), "No usage of tyni from 2027-01-01."),
        (("--model", "tyni"), "No usage of tyni in the last 30 days."),
    ],
)
def test_nothing_is_said_to_be_nothing(
    mens: Command, installation: Installation, arguments: tuple[str, ...], said: str
) -> None:
    told = installation.invoke("usage", *arguments)
    assert (told.stdout, told.stderr) == ("", said + "\n")
    assert installation.invoke("usage", *arguments, "--json").stdout == "[]\n"


def test_all_pages(mens: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mens(*PERIOD)
    monkeypatch.setattr(usage, "PAGE", 1)
    assert mens(*PERIOD) == whole


def test_json(mens: Command) -> None:
    [line] = json.loads(mens(*PERIOD, "--by", "key", "--json"))
    assert (line["key_name"], line["requests"], line["prompt_tokens"]) == ("ci", 4, 40)


def test_the_api_says_what_is_wrong(mens: Command) -> None:
    assert "grouped by 'hour'" in mens("--by", "hour", code=1)
