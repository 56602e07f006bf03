"""``mens aliases`` against a real API on a real socket."""

from __future__ import annotations

import pytest

from cli.connection import connect
from shared.contract import describe_bad_name
from shared.tenancy import Role
from tests.cli.conftest import Command, Installation
from tests.shared.samples import new_adapter

pytestmark = pytest.mark.network


@pytest.fixture
def mens(installation: Installation) -> Command:
    """Runs ``mens``; the installation has the adapters demo@1, demo@2 and demo@3."""
    installation.register(*(new_adapter(f"demo@{number}", final=number == 3) for number in (1, 2, 3)))
    return installation.mens


def test_from_the_first_adapter_to_the_way_back(mens: Command) -> None:
    assert mens("aliases", "set", "prod", "demo@1", "--reason", "first") == "prod → demo@1, version 1"
    split = mens("aliases", "split", "prod", "demo@1=90", "demo@2=10", "--shadow", "demo@3", "--shadow-share", "0.25")
    assert split == "prod → demo@1 90 %, demo@2 10 % (shadow: demo@3 25 %), version 2"
    assert mens("aliases", "list") == "prod\t2\tdemo@1 90 %, demo@2 10 %\tdemo@3 25 %\tshared"
    assert "prod\talias\ttiny\tdemo@1 90 %, demo@2 10 %\tshared" in mens("models").splitlines()
    assert mens("aliases", "rollback", "prod", "--reason", "it swears") == "prod → demo@1, version 3"
    first, *_ = mens("aliases", "history", "prod").splitlines()
    version, _, verb, who, where, shadow, why = first.split("\t")
    assert (version, verb, who, where, shadow, why) == ("3", "rollback", "alice", "demo@1", "", "it swears")
    assert {"tenant shared", "prod → demo@1, version 3"} < set(mens("aliases", "show", "prod").splitlines())
    assert "rollback by alice" in mens("aliases", "show", "prod")
    assert mens("aliases", "rollback", "prod", "--to-version", "2").startswith("prod → demo@1 90 %")


def test_deleted_alias_comes_back(mens: Command) -> None:
    mens("alias", "prod", "demo@1")
    assert "mens aliases rollback prod" in mens("aliases", "delete", "prod", "--reason", "a mistake")
    assert mens("aliases", "list") == ""
    assert "(deleted)\t\ta mistake" in mens("aliases", "history", "prod")
    assert mens("aliases", "rollback", "prod") == "prod → demo@1, version 3"


def test_who_hides_an_alias_of_shared_is_told(mens: Command, installation: Installation) -> None:
    mens("aliases", "set", "prod", "demo@1")
    installation.become("tess", "acme", Role.TRAINER)
    hidden = (
        "note: the alias prod of shared (demo@1) is hidden from acme now; `mens aliases delete prod` shows it again"
    )
    told = installation.invoke("aliases", "set", "prod", "demo@2")
    assert (told.stdout, told.stderr) == ("prod → demo@2, version 1\n", hidden + "\n")
    assert installation.invoke("aliases", "set", "prod", "demo@3").stderr == "", "it is hidden already"
    assert mens("aliases", "list") == "prod\t2\tdemo@3\t\tacme (hides shared's)"
    assert "tenant acme (hides shared's)" in mens("aliases", "show", "prod").splitlines()
    mens("aliases", "delete", "prod")
    assert mens("aliases", "list") == "prod\t1\tdemo@1\t\tshared"
    assert "delete by" not in mens("aliases", "show", "prod"), "that was the one that is hidden no more"
    assert "TENANT_FORBIDDEN" in mens("aliases", "delete", "prod", code=1)
    assert hidden in mens("aliases", "rollback", "prod"), "a deleted alias that returns hides, too"
    assert "hides" in mens("aliases", "--help")


def test_a_name_that_nobody_had_hides_nothing(mens: Command, installation: Installation) -> None:
    installation.become("tess", "acme", Role.TRAINER)
    assert installation.invoke("aliases", "set", "prod", "demo@1").stderr == ""


def test_what_was_so_already_is_told(mens: Command, installation: Installation) -> None:
    mens("aliases", "set", "prod", "demo@1")
    standing = "prod → demo@1, version 1: already so; nothing moved"
    assert mens("aliases", "set", "prod", "demo@1") == standing
    back = mens("aliases", "rollback", "prod", "--to-version", "1", "--reason", "x")
    assert back == f"{standing}, and the reason is not kept"
    installation.become("tess", "acme", Role.TRAINER)
    hiding = installation.invoke("aliases", "set", "prod", "demo@1")
    assert hiding.stdout == "prod → demo@1, version 1\n", "of the same version as shared's, but new"


def test_a_move_from_an_old_version(mens: Command) -> None:
    mens("aliases", "set", "prod", "demo@1")
    mens("aliases", "set", "prod", "demo@2", "--if-version", "1")
    refused = mens("aliases", "set", "prod", "demo@3", "--if-version", "1", code=1)
    assert refused.startswith("error: ALIAS_VERSION_CONFLICT")


@pytest.mark.parametrize("name", ["a/b", "Prod", "", "..", "a?b"])
def test_names_that_are_none(mens: Command, name: str) -> None:
    refused = f"error: NAME_INVALID: name: {describe_bad_name(name)}."
    for verb in (["set", name, "demo@1"], ["split", name, "demo@1=1"], ["show", name], ["rollback", name]):
        assert mens("aliases", *verb, code=1) == refused


def test_the_api_says_the_same_of_a_name(mens: Command) -> None:
    with connect().client() as client:
        answer = client.put("/v1/aliases/Prod", json={"adapter": "demo@1"})
    refused = mens("aliases", "set", "Prod", "demo@1", code=1)
    assert answer.json()["error"]["message"].startswith(refused.removeprefix("error: NAME_INVALID: "))


@pytest.mark.parametrize("target", ["demo@1", "=5", "demo@1=", "demo@1=x", "demo@1=-5"])
def test_targets_that_are_no_targets(mens: Command, target: str) -> None:
    assert "ADAPTER=WEIGHT" in mens("aliases", "split", "prod", target, "demo@2=5", code=1)


def test_names_in_place_of_ids(mens: Command) -> None:
    mens("aliases", "set", "prod", "demo@1")
    none = "is no id of an adapter (ids look like NAME@DIGEST); `mens models` lists them."
    refused = f"error: ADAPTER_NOT_FOUND: 'prod' {none} The alias prod points to demo@1."
    assert mens("aliases", "split", "new", "prod=50", "demo@2=50", code=1) == refused
    assert mens("aliases", "set", "new", "demo@2", "--shadow", "prod", code=1) == refused
    for name in ("nope", "No Name"):
        assert mens("aliases", "set", "new", name, code=1) == f"error: ADAPTER_NOT_FOUND: {name!r} {none}"


@pytest.mark.parametrize("shadow", ["demo@2:0.5", "demo@2=0.5"])
def test_the_share_of_a_shadow_is_an_option(mens: Command, shadow: str) -> None:
    refused = mens("aliases", "set", "prod", "demo@1", "--shadow", shadow, code=1)
    assert refused.endswith("is an option: --shadow demo@2 --shadow-share 0.5.")


def test_a_model_is_deleted_once_no_alias_needs_it(mens: Command) -> None:
    mens("alias", "prod", "demo@1")
    assert "MODEL_IN_USE" in mens("models", "delete", "demo@1", "--yes", code=1)
    assert "is deleted" in mens("models", "delete", "demo@2", "--yes")
    assert [line.split("\t")[0] for line in mens("models").splitlines()] == ["prod", "demo@1", "demo@3"]
