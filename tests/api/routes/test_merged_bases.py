"""A merged model is offered under its name after a replica that serves it has passed, and while none has failed."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.base_models.catalog import Catalog, MergedFrom, save_catalog
from shared.database.base_certificates import BaseCertificates
from tests.support.builders import BASE, base_entry

NAME, ONE, OTHER = "support-merged", "replica-11111111", "replica-22222222"
MERGED = MergedFrom(digest="c" * 64, adapter_id=f"support@{'a' * 64}", base_model=BASE, probes_digest="d" * 64)
ENTRY = base_entry(NAME, **{"model.safetensors": "e" * 64}).model_copy(update={"merged_from": MERGED})
QUESTION: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "?"}]}


@pytest.fixture
def certificates(app: FastAPI, client: TestClient) -> BaseCertificates:
    """Certificates of an installation whose catalogue has a merged model."""
    services = app.state.services
    save_catalog(services.settings.catalog_path, Catalog(bases=[*services.catalog().bases, ENTRY]))
    return BaseCertificates(services.database)


def certificate(*failed: str) -> dict[str, Any]:
    return {"passed": not failed, "failed": list(failed), "parity": {}}


def asked(client: TestClient) -> str:
    """Code of what a chat is answered with; no replica is there, so that what is offered is unavailable."""
    return str(client.post("/v1/chat/completions", json=QUESTION).json()["error"]["mens"]["code"])


def listed(client: TestClient) -> set[str]:
    return {model["id"] for model in client.get("/v1/models").json()["data"]}


def shown(client: TestClient) -> dict[str, Any]:
    return dict(client.get(f"/v1/models/{NAME}").json()["mens"])


def test_it_is_offered_after_its_first_certificate(client: TestClient, certificates: BaseCertificates) -> None:
    assert listed(client) == {BASE}
    refused = client.post("/v1/chat/completions", json=QUESTION)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["mens"]["code"] == "MODEL_UNCERTIFIED"
    assert "no replica that serves it has been measured" in error["message"]
    assert f"`mens up --base {NAME}`" in error["mens"]["remedy"]
    assert (shown(client)["offered"], shown(client)["certificates"]) == (False, {})
    certificates.store(ENTRY.digest, ONE, "start-1", certificate())
    assert listed(client) == {BASE, NAME}
    assert asked(client) == "SERVING_UNAVAILABLE"
    assert (shown(client)["offered"], shown(client)["certificates"]) == (True, {ONE: certificate()})
    assert shown(client)["merged_from"] == MERGED.model_dump()


def test_one_replica_that_failed_takes_it_out(client: TestClient, certificates: BaseCertificates) -> None:
    certificates.store(ENTRY.digest, ONE, None, certificate())
    assert asked(client) == "SERVING_UNAVAILABLE"
    certificates.store(ENTRY.digest, OTHER, None, certificate("engine_error"))
    assert asked(client) == "MODEL_UNCERTIFIED", "the lookup that was cached is read again"
    error = client.post("/v1/chat/completions", json=QUESTION).json()["error"]
    assert f"{OTHER} failed engine_error" in error["message"]
    assert list(error["mens"]["details"]["failed"]) == [OTHER]
    assert NAME not in listed(client) and not shown(client)["offered"]
    certificates.store(ENTRY.digest, OTHER, "start-2", certificate())
    assert asked(client) == "SERVING_UNAVAILABLE", "it was started again, and passed"


def test_a_replica_that_has_gone_says_nothing_any_more(client: TestClient, certificates: BaseCertificates) -> None:
    certificates.store(ENTRY.digest, ONE, None, certificate())
    certificates.store(ENTRY.digest, OTHER, None, certificate("template"))
    certificates.keep_only([ONE])
    assert asked(client) == "SERVING_UNAVAILABLE"
    certificates.keep_only([])
    assert asked(client) == "MODEL_UNCERTIFIED"


def test_a_certificate_is_of_one_content(client: TestClient, certificates: BaseCertificates) -> None:
    certificates.store("f" * 64, ONE, None, certificate())
    assert asked(client) == "MODEL_UNCERTIFIED"


def test_neither_another_name_nor_an_evaluation_comes_to_it(client: TestClient, certificates: BaseCertificates) -> None:
    made = client.put("/v1/names/gpt-4o", json={"base": NAME})
    assert made.status_code == 200, made.text
    answer = client.post("/v1/chat/completions", json=QUESTION | {"model": "gpt-4o"})
    assert answer.json()["error"]["mens"]["code"] == "MODEL_UNCERTIFIED"
    assert "gpt-4o" not in listed(client)
    config = {
        "type": "custom",
        "item_schema": {"type": "object", "properties": {"q": {}}},
        "include_sample_schema": True,
    }
    check = {
        "type": "string_check",
        "name": "same",
        "input": "{{ sample.output_text }}",
        "reference": "x",
        "operation": "eq",
    }
    made = client.post("/v1/evals", json={"data_source_config": config, "testing_criteria": [check]})
    source = {
        "type": "completions",
        "model": NAME,
        "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{ item.q }}"}]},
        "source": {"type": "file_content", "content": [{"item": {"q": "?"}}]},
    }
    run = client.post(f"/v1/evals/{made.json()['id']}/runs", json={"data_source": source})
    assert run.json()["error"]["mens"]["code"] == "MODEL_UNCERTIFIED", run.text


def test_other_bases_need_none(client: TestClient, certificates: BaseCertificates) -> None:
    answer = client.post("/v1/chat/completions", json=QUESTION | {"model": BASE})
    assert answer.json()["error"]["mens"]["code"] == "SERVING_UNAVAILABLE"
    assert "certificates" not in client.get(f"/v1/models/{BASE}").json()["mens"]
