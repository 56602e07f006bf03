"""``mens models`` and ``mens models show`` against a real API on a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.catalog import Catalog, save_catalog
from shared.tenancy import Role
from tests.cli.conftest import Installation
from tests.shared.samples import base_entry, new_adapter

REPLICA = "replica-1f0c9a2b"

pytestmark = pytest.mark.network


def certificate(*failed: str, engine_error: float | None = 6.2e-7) -> dict[str, Any]:
    """As far as it is told of; `tests/worker/test_certificates.py` has a whole one."""
    parity = {"engine_error_rms_nats": engine_error, "base_shift_rms_nats": 0.16}
    return {"effect_rms_nats": 5.3, "parity": parity, "failed": list(failed), "passed": not failed}


@pytest.fixture(autouse=True)
def shop(installation: Installation) -> Installation:
    """The base tiny; demo@1, proven on a replica; demo@2, a checkpoint; demo@3, quarantined."""
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(
        new_adapter("demo@1", certificates={REPLICA: certificate()}),
        new_adapter("demo@2", final=False),
        new_adapter("demo@3", published=False, certificates={REPLICA: certificate("effect", engine_error=None)}),
    )
    return installation


def test_lists_say_whose_a_model_is(shop: Installation) -> None:
    shop.mens("alias", "prod", "demo@1")
    shop.become("tess", "acme", Role.TRAINER)
    shop.mens("alias", "mine", "demo@1")
    lines = [line.split("\t") for line in shop.mens("models").splitlines()]
    assert {line[0]: line[4] for line in lines} == {
        "tiny": "", "mine": "acme", "prod": "shared", "demo@1": "shared", "demo@2": "shared",
    }  # fmt: skip


def test_lists_say_whose_a_job_is(shop: Installation) -> None:
    [line] = shop.mens("jobs", "list").splitlines()
    assert line.split("\t")[-1] == "shared"


def test_an_adapter_with_its_aliases_and_numbers(shop: Installation) -> None:
    shop.mens("aliases", "split", "prod", "demo@1=90", "demo@2=10")
    shop.mens("aliases", "set", "next", "demo@2", "--shadow", "demo@1", "--shadow-share", "0.25")
    lines = shop.mens("models", "show", "demo@1").splitlines()
    assert [*lines[:3], *lines[4:]] == [
        "demo@1  adapter, published",
        "base     tiny",
        "tenant   shared",
        "aliases  next (shadow 25 %), prod 90 %",
        f"proof    {REPLICA}: passed; effect 5.3 nats, engine error 6.2e-07 nats, base shift 0.16 nats",
    ]
    assert lines[3].startswith("job      ftjob-")


def test_a_checkpoint_that_nobody_measured(shop: Installation) -> None:
    lines = shop.mens("models", "show", "demo@2").splitlines()
    assert lines[0] == "demo@2  checkpoint, published"
    assert lines[-2:] == ["aliases  none", "proof    none: no replica has measured it"]


def test_a_quarantined_one_which_no_list_knows(shop: Installation) -> None:
    assert "demo@3" not in shop.mens("models")
    shown = shop.mens("models", "show", "demo@3")
    assert shown.startswith("demo@3  adapter, quarantined")
    assert f"{REPLICA}: failed (effect); effect 5.3 nats, engine error not taken, base shift 0.16 nats" in shown


def test_an_alias_and_all_that_it_asks(shop: Installation) -> None:
    shop.mens("aliases", "set", "prod", "demo@1", "--shadow", "demo@2")
    first, *others = shop.mens("models", "show", "prod").split("\n\n")
    assert first.startswith("prod  alias\ntenant   shared\nmoved    20")
    assert first.endswith(": prod → demo@1 (shadow: demo@2 10 %), version 1")
    assert [block.split()[0] for block in others] == ["demo@1", "demo@2"]


def test_a_base(shop: Installation) -> None:
    assert shop.mens("models", "show", "tiny").splitlines() == [
        "tiny  base model of the catalogue, for every tenant",
        f"digest   {base_entry().digest}",
    ]


def test_everything_as_json(shop: Installation) -> None:
    shop.mens("alias", "prod", "demo@1")
    shown = json.loads(shop.mens("models", "show", "prod", "--json"))
    assert shown["model"]["mens"]["kind"] == "alias"
    assert [adapter["certificates"][REPLICA]["passed"] for adapter in shown["adapters"]] == [True]
    assert [alias["name"] for alias in shown["aliases"]] == ["prod"]


def test_what_is_not_there(shop: Installation) -> None:
    refused = "error: MODEL_NOT_FOUND: There is no model 'nope'. List what there is with `mens models`."
    assert shop.mens("models", "show", "nope", code=1) == refused
