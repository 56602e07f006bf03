"""``mens aliases`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from cli.client.connection import connect
from shared.contract.values import describe_bad_name
from shared.database.gates.shadow_comparisons import PairCounts, ShadowComparisons, ShadowPair
from shared.database.tenancy import Role
from shared.statistics.sequential import is_worse
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation, Command

pytestmark = pytest.mark.network


@pytest.fixture
def mens(installation: CliInstallation) -> Command:
    """Runs ``mens``; the installation has the adapters demo@1, demo@2 and demo@3."""
    installation.register(*(new_adapter(f"demo@{number}", final=number == 3) for number in (1, 2, 3)))
    return installation.mens


def test_set_split_rollback_and_history(mens: Command) -> None:
    assert mens("aliases", "set", "prod", "demo@1", "--reason", "first") == "prod → demo@1, version 1"
    split = mens("aliases", "split", "prod", "demo@1=90", "demo@2=10", "--shadow", "demo@3", "--shadow-share", "0.25")
    assert split == "prod → demo@1 90 %, demo@2 10 % (shadow: demo@3 25 %), version 2"
    assert mens("aliases", "list") == "prod\t2\tdemo@1 90 %, demo@2 10 %\tdemo@3 25 %\tshared"
    (listed,) = json.loads(mens("aliases", "list", "--json"))
    assert (listed["name"], listed["version"], len(listed["targets"])) == ("prod", 2, 2)
    assert ("prod", "alias") in {(one["id"], one["mens"]["kind"]) for one in json.loads(mens("models", "--json"))}
    assert "prod\talias\ttiny\tdemo@1 90 %, demo@2 10 %\tshared" in mens("models").splitlines()
    assert mens("aliases", "rollback", "prod", "--reason", "it swears") == "prod → demo@1, version 3"
    first, *_ = mens("aliases", "history", "prod").splitlines()
    version, _, verb, who, where, shadow, why = first.split("\t")
    assert (version, verb, who, where, shadow, why) == ("3", "rollback", "alice", "demo@1", "", "it swears")
    assert {"tenant shared", "prod → demo@1, version 3"} < set(mens("aliases", "show", "prod").splitlines())
    assert "rollback by alice" in mens("aliases", "show", "prod")
    assert mens("aliases", "rollback", "prod", "--to-version", "2").startswith("prod → demo@1 90 %")


def test_rollback_restores_a_deleted_alias(mens: Command) -> None:
    mens("alias", "prod", "demo@1")
    assert "mens aliases rollback prod" in mens("aliases", "delete", "prod", "--reason", "a mistake")
    assert mens("aliases", "list") == ""
    assert "(deleted)\t\ta mistake" in mens("aliases", "history", "prod")
    assert mens("aliases", "rollback", "prod") == "prod → demo@1, version 3"


def test_hiding_an_alias_of_shared_prints_a_note(mens: Command, installation: CliInstallation) -> None:
    mens("aliases", "set", "prod", "demo@1")
    installation.become("tess", "acme", Role.TRAINER)
    hidden = (
        "note: the alias prod of shared (demo@1) is hidden from acme now; `mens aliases delete prod` shows it again"
    )
    output = installation.invoke("aliases", "set", "prod", "demo@2")
    assert (output.stdout, output.stderr) == ("prod → demo@2, version 1\n", hidden + "\n")
    assert installation.invoke("aliases", "set", "prod", "demo@3").stderr == "", "it is hidden already"
    assert mens("aliases", "list") == "prod\t2\tdemo@3\t\tacme (hides shared's)"
    assert "tenant acme (hides shared's)" in mens("aliases", "show", "prod").splitlines()
    mens("aliases", "delete", "prod")
    assert mens("aliases", "list") == "prod\t1\tdemo@1\t\tshared"
    assert "delete by" not in mens("aliases", "show", "prod"), "that move was of the alias that no longer hides it"
    assert "TENANT_FORBIDDEN" in mens("aliases", "delete", "prod", code=1)
    assert hidden in mens("aliases", "rollback", "prod"), "a restored alias hides, too"
    assert "hides" in mens("aliases", "--help")


def test_new_name_hides_nothing(mens: Command, installation: CliInstallation) -> None:
    installation.become("tess", "acme", Role.TRAINER)
    assert installation.invoke("aliases", "set", "prod", "demo@1").stderr == ""


def test_move_without_change_is_reported(mens: Command, installation: CliInstallation) -> None:
    mens("aliases", "set", "prod", "demo@1")
    unchanged = "prod → demo@1, version 1: no change"
    assert mens("aliases", "set", "prod", "demo@1") == unchanged
    back = mens("aliases", "rollback", "prod", "--to-version", "1", "--reason", "x")
    assert back == f"{unchanged}, and the reason is not recorded"
    installation.become("tess", "acme", Role.TRAINER)
    hiding = installation.invoke("aliases", "set", "prod", "demo@1")
    assert hiding.stdout == "prod → demo@1, version 1\n", "of the same version as shared's, but new"


def test_move_from_old_version_conflicts(mens: Command) -> None:
    mens("aliases", "set", "prod", "demo@1")
    mens("aliases", "set", "prod", "demo@2", "--if-version", "1")
    refused = mens("aliases", "set", "prod", "demo@3", "--if-version", "1", code=1)
    assert refused.startswith("error: ALIAS_VERSION_CONFLICT")


@pytest.mark.parametrize("name", ["a/b", "Prod", "", "..", "a?b"])
def test_invalid_alias_names_are_refused(mens: Command, name: str) -> None:
    refused = f"error: NAME_INVALID: name: {describe_bad_name(name)}."
    for verb in (["set", name, "demo@1"], ["split", name, "demo@1=1"], ["show", name], ["rollback", name]):
        assert mens("aliases", *verb, code=1) == refused


def test_api_and_command_line_give_the_same_name_error(mens: Command) -> None:
    with connect().client() as client:
        response = client.put("/v1/aliases/Prod", json={"adapter": "demo@1"})
    refused = mens("aliases", "set", "Prod", "demo@1", code=1)
    assert response.json()["error"]["message"].startswith(refused.removeprefix("error: NAME_INVALID: "))


@pytest.mark.parametrize("target", ["demo@1", "=5", "demo@1=", "demo@1=x", "demo@1=-5"])
def test_invalid_targets_are_refused(mens: Command, target: str) -> None:
    assert "ADAPTER=WEIGHT" in mens("aliases", "split", "prod", target, "demo@2=5", code=1)


def test_alias_in_place_of_adapter_id_is_refused(mens: Command) -> None:
    mens("aliases", "set", "prod", "demo@1")
    none, listed = "is not an adapter's id (ids look like NAME@DIGEST).", "List available models with `mens models`."
    refused = f"error: ADAPTER_NOT_FOUND: 'prod' {none} The alias prod points to demo@1. {listed}"
    assert mens("aliases", "split", "new", "prod=50", "demo@2=50", code=1) == refused
    assert mens("aliases", "set", "new", "demo@2", "--shadow", "prod", code=1) == refused
    for name in ("nope", "No Name"):
        assert mens("aliases", "set", "new", name, code=1) == f"error: ADAPTER_NOT_FOUND: {name!r} {none} {listed}"


@pytest.mark.parametrize("shadow", ["demo@2:0.5", "demo@2=0.5"])
def test_share_behind_shadow_id_is_refused(mens: Command, shadow: str) -> None:
    refused = mens("aliases", "set", "prod", "demo@1", "--shadow", shadow, code=1)
    assert refused.endswith("is an option: --shadow demo@2 --shadow-share 0.5.")


def test_adapter_in_use_by_alias_is_not_deleted(mens: Command, installation: CliInstallation) -> None:
    mens("alias", "prod", "demo@1")
    assert "MODEL_IN_USE" in mens("models", "delete", "demo@1", "--yes", code=1)
    assert "is deleted" in mens("models", "delete", "demo@2", "--yes")
    listed = installation.invoke("models").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == ["prod", "demo@3", "demo@1"]


def test_shadow_shows_the_outcomes_of_judged_copies(mens: Command, installation: CliInstallation) -> None:
    config = {"type": "custom", "item_schema": {"type": "object"}}
    check = {"type": "python", "name": "json", "source": "", "mens": {"check": "json_schema", "json_schema": {}}}
    body = {"name": "form", "data_source_config": config, "testing_criteria": [check]}
    with connect().client() as client:
        eval_id = client.post("/v1/evals", json=body).json()["id"]
    judged = ("--shadow", "demo@2", "--shadow-share", "0.5", "--shadow-eval", eval_id)
    moved = mens("aliases", "set", "prod", "demo@1", *judged)
    assert moved == f"prod → demo@1 (shadow: demo@2 50 %, judged by {eval_id}), version 1"
    assert "No copies of requests to prod have been judged" in mens("aliases", "shadow", "prod")
    pair = ShadowPair(alias="prod", incumbent_id="demo@1", candidate_id="demo@2", eval_id=eval_id)
    comparisons = ShadowComparisons(installation.services.database)
    comparisons.add(pair, PairCounts(wins=1, losses=3, ties=6, errored=2, last_error="SERVING_FAILED"), is_worse)
    shadow, beside, won, difference, verdict, errors, judge = mens("aliases", "shadow", "prod").split("\t")
    assert (shadow, beside, won, verdict, errors, judge) == (
        "demo@2", "demo@1", "1 / 3 / 6", "undecided", "2 (SERVING_FAILED)", eval_id,
    )  # fmt: skip
    assert difference.startswith("-0.200 [-")
    comparisons.add(pair, PairCounts(losses=20), is_worse)
    assert "WORSE: stopped" in mens("aliases", "shadow", "prod")
    (found,) = json.loads(mens("aliases", "shadow", "prod", "--json"))
    assert (found["verdict"], found["losses"]) == ("worse", 23)


def test_eval_without_a_shadow_is_refused(mens: Command) -> None:
    refused = mens("aliases", "set", "prod", "demo@1", "--shadow-eval", "eval-1", code=1)
    assert refused.endswith("--shadow-eval needs --shadow ADAPTER.")
