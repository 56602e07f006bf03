"""``mens permissions`` against a real API on a real socket."""

from __future__ import annotations

import json

import pytest

from shared.database.tenancy import SHARED, Role
from tests.support.builders import new_adapter
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network
ADAPTER = f"demo@{'a' * 64}"


def test_adapter_is_lent_and_taken_back(installation: CliInstallation) -> None:
    installation.register(new_adapter(ADAPTER))
    made = installation.mens("permissions", "create", "demo@aa", "acme", "globex").splitlines()
    assert [line.split("\t")[1] for line in made] == ["acme", "globex"]
    installation.become("guest", "acme", Role.TRAINER)
    assert ADAPTER in installation.mens("models"), "the other tenant has it"
    installation.become("admin", SHARED, Role.ADMIN)
    assert installation.mens("permissions", "delete", "demo@aa", "acme") == f"acme may no longer use {ADAPTER}."
    left = json.loads(installation.mens("permissions", "list", "demo@aa", "--json"))
    assert [each["project_id"] for each in left] == ["globex"]
    installation.mens("permissions", "delete", ADAPTER, left[0]["id"])
    assert installation.mens("permissions", "list", ADAPTER) == ""


def test_unknown_tenants_and_permissions_are_refused(installation: CliInstallation) -> None:
    installation.register(new_adapter(ADAPTER))
    assert "No Name" in installation.mens("permissions", "create", ADAPTER, "acme", "No Name", code=2)
    said = installation.mens("permissions", "delete", ADAPTER, "acme", code=1)
    assert "acme has no permission" in said
    assert f"mens permissions list {ADAPTER}" in said


def test_alias_in_place_of_an_adapter_is_said_to_be_one(installation: CliInstallation) -> None:
    installation.register(new_adapter(ADAPTER))
    installation.mens("aliases", "set", "helper", ADAPTER)
    for command in (["list", "helper"], ["create", "helper", "acme"], ["delete", "helper", "acme"]):
        refused = installation.mens("permissions", *command, code=1)
        assert refused.startswith("error: ADAPTER_NOT_FOUND: 'helper' ")
        assert f"The alias helper points to {ADAPTER}." in refused
