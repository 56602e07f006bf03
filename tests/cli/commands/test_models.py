"""``mens models`` and ``mens models show`` against a real API on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.artifacts.manifests import ParentRef
from shared.base_models.catalog import Catalog, MergedFrom, save_catalog
from shared.database.base_certificates import BaseCertificates
from shared.database.tenancy import Role
from tests.support.builders import base_entry, new_adapter
from tests.support.cli_installation import CliInstallation
from tests.support.parents import add_adapter, another, manifest_of

REPLICA = "replica-1f0c9a2b"

pytestmark = pytest.mark.network


def certificate(*failed: str, engine_error: float | None = 6.2e-7) -> dict[str, Any]:
    """The fields that are shown; `tests/worker/jobs/test_certificates.py` has a whole certificate."""
    parity = {"engine_error_rms_nats": engine_error, "base_shift_rms_nats": 0.16}
    return {"effect_rms_nats": 5.3, "parity": parity, "failed": list(failed), "passed": not failed}


@pytest.fixture(autouse=True)
def with_models(installation: CliInstallation) -> CliInstallation:
    """The base tiny; demo@1, proven on a replica; demo@2, a checkpoint; demo@3, quarantined."""
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(
        new_adapter("demo@1", certificates={REPLICA: certificate()}),
        new_adapter("demo@2", final=False),
        new_adapter("demo@3", published=False, certificates={REPLICA: certificate("effect", engine_error=None)}),
    )
    return installation


def test_models_are_listed_with_their_tenant(with_models: CliInstallation) -> None:
    with_models.mens("alias", "prod", "demo@1")
    with_models.become("tess", "acme", Role.TRAINER)
    with_models.mens("alias", "mine", "demo@1")
    lines = [line.split("\t") for line in with_models.invoke("models").stdout.splitlines()]
    assert {line[0]: line[4] for line in lines} == {
        "tiny": "", "mine": "acme", "prod": "shared", "demo@1": "shared", "demo@2": "shared",
    }  # fmt: skip


def test_the_list_ends_with_the_command_that_chats(with_models: CliInstallation) -> None:
    assert with_models.invoke("models").stderr == 'next: mens chat demo@1 "…"\n'
    with_models.mens("alias", "prod", "demo@1")
    assert with_models.invoke("models", "list").stderr == 'next: mens chat prod "…"\n'
    assert with_models.invoke("models", "list").stdout == with_models.invoke("models").stdout
    assert with_models.invoke("models", "list", "--json").stderr == ""


def test_what_is_not_an_adapter_is_refused_before_a_question(with_models: CliInstallation) -> None:
    with_models.mens("alias", "prod", "demo@1")
    for name in ("tiny", "prod"):
        refused = with_models.mens("models", "delete", name, code=1)
        assert refused.startswith("error: MODEL_NOT_DELETABLE: ")
    assert "This cannot be undone" in with_models.mens("models", "delete", "demo@2", code=1)
    assert "demo@2" in with_models.mens("models"), "nobody has confirmed"


def test_alias_that_a_base_has_taken_over_is_noted(with_models: CliInstallation) -> None:
    with_models.mens("alias", "prod", "demo@1")
    assert "note: " not in with_models.invoke("models").stderr
    catalog = Catalog(bases=[base_entry(), base_entry("prod")])
    save_catalog(with_models.services.settings.catalog_path, catalog)
    noted = with_models.invoke("models").stderr
    assert noted.startswith("note: prod is a base and an alias; the base answers.")
    assert "`mens aliases delete prod`" in noted and "`mens base remove prod`" in noted
    with_models.mens("aliases", "delete", "prod")
    assert "note: " not in with_models.invoke("models").stderr


def test_jobs_are_listed_with_their_tenant(with_models: CliInstallation) -> None:
    [line] = with_models.mens("jobs", "list").splitlines()
    assert line.split("\t")[-1] == "shared"


def test_adapter_is_shown_with_aliases_and_certificate(with_models: CliInstallation) -> None:
    with_models.mens("aliases", "split", "prod", "demo@1=90", "demo@2=10")
    with_models.mens("aliases", "set", "next", "demo@2", "--shadow", "demo@1", "--shadow-share", "0.25")
    lines = with_models.mens("models", "show", "demo@1").splitlines()
    assert [*lines[:3], *lines[4:]] == [
        "demo@1  adapter, published",
        "base     tiny",
        "tenant   shared",
        "aliases  next (shadow 25 %), prod 90 %",
        f"proof    {REPLICA}: passed; effect 5.3 nats, engine error 6.2e-07 nats, base shift 0.16 nats",
    ]
    assert lines[3].startswith("job      ftjob-")


def test_checkpoint_without_certificate(with_models: CliInstallation) -> None:
    lines = with_models.mens("models", "show", "demo@2").splitlines()
    assert lines[0] == "demo@2  checkpoint, published"
    assert lines[-2:] == ["aliases  none", "proof    none: no replica has measured it"]


def test_quarantined_adapter_is_shown_but_not_listed(with_models: CliInstallation) -> None:
    assert "demo@3" not in with_models.mens("models")
    shown = with_models.mens("models", "show", "demo@3")
    assert shown.startswith("demo@3  adapter, quarantined")
    assert f"{REPLICA}: failed (effect); effect 5.3 nats, engine error not measured, base shift 0.16 nats" in shown


def test_alias_is_shown_with_targets_and_shadow(with_models: CliInstallation) -> None:
    with_models.mens("aliases", "set", "prod", "demo@1", "--shadow", "demo@2")
    first, *others = with_models.mens("models", "show", "prod").split("\n\n")
    assert first.startswith("prod  alias\ntenant   shared\nmoved    20")
    assert first.endswith(": prod → demo@1 (shadow: demo@2 10 %), version 1")
    assert [block.split()[0] for block in others] == ["demo@1", "demo@2"]


def test_base_is_shown_with_its_digest(with_models: CliInstallation) -> None:
    assert with_models.mens("models", "show", "tiny").splitlines() == [
        "tiny  base model of the catalogue, for every tenant",
        f"digest   {base_entry().digest}",
    ]


def test_merged_model_is_shown_with_its_certificates(with_models: CliInstallation) -> None:
    merged = MergedFrom(digest="c" * 64, adapter_id="demo@1", base_model="tiny", probes_digest="d" * 64)
    entry = base_entry("merged", **{"config.json": "e" * 64}).model_copy(update={"merged_from": merged})
    services = with_models.services
    save_catalog(services.settings.catalog_path, Catalog(bases=[base_entry(), entry]))
    shown = with_models.mens("models", "show", "merged").splitlines()
    assert shown[2:] == ["merged   demo@1 into tiny; not offered", "proof    none: no replica has measured it"]
    BaseCertificates(services.database).store(entry.digest, REPLICA, None, certificate())
    shown = with_models.mens("models", "show", "merged").splitlines()
    assert shown[2] == "merged   demo@1 into tiny; offered"
    assert shown[3].startswith(f"proof    {REPLICA}: passed; effect 5.3 nats, engine error 6.2e-07 nats")


def test_model_as_json(with_models: CliInstallation) -> None:
    with_models.mens("alias", "prod", "demo@1")
    shown = json.loads(with_models.mens("models", "show", "prod", "--json"))
    assert shown["model"]["mens"]["kind"] == "alias"
    assert [adapter["certificates"][REPLICA]["passed"] for adapter in shown["adapters"]] == [True]
    assert [alias["name"] for alias in shown["aliases"]] == ["prod"]


def test_unknown_model_is_refused(with_models: CliInstallation) -> None:
    refused = "error: MODEL_NOT_FOUND: The model 'nope' does not exist. List available models with `mens models`."
    assert with_models.mens("models", "show", "nope", code=1) == refused


@pytest.mark.parametrize(
    ("content", "finish_reason", "said"),
    [
        ("Hello.", "stop", ""),
        ("", "stop", "note: demo@1 returned an empty answer\n"),
        (" \n", "stop", "note: demo@1 returned an empty answer\n"),
        (
            "",
            "length",
            "note: demo@1 returned an empty answer: the limit of 256 tokens was reached before the answer began; raise it with --max-tokens\n",
        ),
    ],
)
def test_an_empty_answer_is_noted(with_models: CliInstallation, content: str, finish_reason: str, said: str) -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": content}}]},
        {"choices": [{"delta": {}, "finish_reason": finish_reason}]},
        {"choices": [], "usage": {}},
    ]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    @contextmanager
    def answer(*_: Any, **__: Any) -> Iterator[httpx.Response]:
        yield httpx.Response(200, text=stream)

    with_models.patch.setattr(httpx.Client, "stream", answer)
    answered = with_models.invoke("chat", "demo@1", "Hi")
    assert (answered.stdout, answered.stderr) == (f"{content}\n", said)


@contextmanager
def answering(*_: Any, json: dict[str, Any], **__: Any) -> Iterator[httpx.Response]:
    """Every model answers with its own name; an adapter stands behind `prod`."""
    event = f'data: {{"choices": [{{"delta": {{"content": "I am {json["model"]}"}}}}]}}\n\n'
    yield httpx.Response(200, text=event, headers={"x-mens-adapter": "demo@1"} if json["model"] == "prod" else {})


def test_adapter_behind_an_alias_is_named_next_to_the_answer(with_models: CliInstallation) -> None:
    with_models.patch.setattr(httpx.Client, "stream", answering)
    answered = with_models.invoke("chat", "prod", "Hi")
    assert (answered.stdout, answered.stderr) == ("I am prod\n", "answered by demo@1\n")
    assert with_models.invoke("chat", "tiny", "Hi").stderr == ""


def test_two_models_are_compared(with_models: CliInstallation) -> None:
    with_models.patch.setattr(httpx.Client, "stream", answering)
    compared = with_models.invoke("chat", "prod", "Hi", "--with", "tiny")
    assert compared.stdout == "prod (demo@1):\nI am prod\ntiny:\nI am tiny\n"


def test_message_is_read_from_a_pipe(with_models: CliInstallation) -> None:
    with_models.patch.setattr(httpx.Client, "stream", answering)
    assert CliRunner().invoke(app, ["chat", "tiny"], input="Hi\n").stdout == "I am tiny\n"
    empty = CliRunner().invoke(app, ["chat", "tiny"], input="\n")
    assert (empty.exit_code, "the message is missing" in empty.stderr) == (1, True)


def test_an_adapter_is_shown_with_those_that_it_was_continued_from(with_models: CliInstallation) -> None:
    first = manifest_of(base_entry())
    chain = [first]
    for text in ("second", "third"):
        before = chain[-1]
        parent = ParentRef(id=before.adapter_id, digest=before.digest, step=before.step)
        chain.append(another(first, text).model_copy(update={"parent": parent}))
    for manifest in chain:
        add_adapter(with_models.services.database, manifest)
    first_id, second_id, third_id = (manifest.adapter_id for manifest in chain)
    shown = with_models.mens("models", "show", third_id)
    assert f"parent {second_id}, step 7" in shown
    assert f"ancestors {second_id}, {first_id}" in shown
    assert "ancestors" not in with_models.mens("models", "show", second_id)
    assert "parent" not in with_models.mens("models", "show", first_id)
