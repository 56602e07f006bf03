"""Replicas of several bases behind one API: a request goes to a replica that serves the base of its model, or to none."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from shared.hashing import digest_json
from shared.replicas import ReplicaCapabilities
from tests.support.builders import BASE
from tests.support.gateway import ADAPTER
from tests.support.running_api import RunningApi, served_by, states
from tests.support.socket_replica import RawReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network
OTHER_BASE, OTHER_ADAPTER = "other", f"second@{'e' * 64}"
OTHER_DIGESTS = {"model.safetensors": "1" * 64}


def capabilities(base: str, digest: str) -> ReplicaCapabilities:
    return ReplicaCapabilities(base=base, base_digest=digest, served_digest=digest, max_lora_rank=16)


@pytest.fixture
def replicas(app: FastAPI) -> Iterator[tuple[RawReplica, RawReplica]]:
    """A replica of the base that the adapters of other tests have, and one of another base."""
    settings = app.state.services.settings
    catalog = load_catalog(settings.catalog_path)
    entry = catalog.get(BASE).model_copy(update={"name": OTHER_BASE, "digests": OTHER_DIGESTS})
    save_catalog(settings.catalog_path, Catalog(bases=[*catalog.bases, entry]))
    own = RawReplica("own", serves=capabilities(BASE, catalog.get(BASE).digest))
    other = RawReplica("other", serves=capabilities(OTHER_BASE, digest_json(OTHER_DIGESTS)))
    settings.serving_urls[:] = [own.url, other.url]
    register_second(app)
    yield own, other
    for replica in (own, other):
        replica.stop()


def register_second(app: FastAPI) -> None:
    """Register an adapter of the other base, and the alias ``second`` on it."""
    leases = Leases(app.state.services.database, 60)
    submission = Submission(kind=Kind.FINETUNE, base_model=OTHER_BASE, name="second", contract={}, plan={})
    job, _ = app.state.services.jobs.submit(submission)
    lease = leases.claim(job.id, "w")
    assert lease
    adapter = NewAdapter(
        id=OTHER_ADAPTER,
        digest="e" * 64,
        base_model=OTHER_BASE,
        step=1,
        final=True,
        published=True,
        manifest={"base_digests": OTHER_DIGESTS},
    )
    leases.finish(lease, {}, adapters=[adapter], alias="second")


def refusal(api: httpx.Client, model: str) -> tuple[int, str, str]:
    response = api.post("/v1/completions", json={"model": model})
    error = response.json()["error"]
    return response.status_code, error["mens"]["code"], error["message"]


def test_each_model_is_queried_where_its_base_is_served(app: FastAPI, replicas: tuple[RawReplica, RawReplica]) -> None:
    own, other = replicas
    with RunningApi(app) as api:
        own.asked.clear(), other.asked.clear()
        assert [served_by(api, model) for model in (BASE, OTHER_BASE, OTHER_ADAPTER, "second")] == ["own"] + [
            "other"
        ] * 3
        assert (own.models, other.models) == ([BASE], [OTHER_BASE, OTHER_ADAPTER, OTHER_ADAPTER])
        assert served_by(api, ADAPTER) in {"own", "other"}, "its manifest does not say what its base is"
        found = {each["url"]: each["base"] for each in api.get("/v1/replicas").json()["data"]}
        assert found == {own.url: BASE, other.url: OTHER_BASE}
        models = {model["id"]: model["mens"].get("served") for model in api.get("/v1/models").json()["data"]}
        assert (models[BASE], models[OTHER_BASE]) == (True, True)


def test_no_request_goes_to_a_replica_of_another_base(app: FastAPI, replicas: tuple[RawReplica, RawReplica]) -> None:
    own, other = replicas
    with RunningApi(app) as api:
        other.stop()
        status, code, _ = refusal(api, "second")
        assert (status, code) == (503, "SERVING_UNAVAILABLE"), "a replica has it, and is down"
        eventually(lambda: states(api)[other.url] == "down")
        assert BASE in own.models
        assert OTHER_ADAPTER not in own.models


def test_base_that_is_served_nowhere_is_refused_by_name(app: FastAPI, replicas: tuple[RawReplica, RawReplica]) -> None:
    own, other = replicas
    # Of the same name, with other weights.
    other.serves = capabilities(OTHER_BASE, "f" * 64)
    with RunningApi(app) as api:
        for model in (OTHER_BASE, "second"):
            status, code, message = refusal(api, model)
            assert (status, code) == (503, "BASE_NOT_SERVED")
            assert message.startswith(
                f"{OTHER_BASE} is served here from files that differ from those that this request needs."
            )
        models = {model["id"]: model["mens"].get("served") for model in api.get("/v1/models").json()["data"]}
        assert (models[BASE], models[OTHER_BASE]) == (True, False)
        assert own.models == [BASE]


def test_refusal_names_the_served_bases_and_the_command(app: FastAPI, replicas: tuple[RawReplica, RawReplica]) -> None:
    own, other = replicas
    digest = own.serves.base_digest if own.serves else None
    assert digest
    twin = ReplicaCapabilities(
        base="tiny-twin", base_digest=digest, served_digest="9" * 64, twin_of=BASE, max_lora_rank=16
    )
    other.serves = twin
    with RunningApi(app) as api:
        error = api.post("/v1/completions", json={"model": "second"}).json()["error"]
        assert error["mens"]["code"] == "BASE_NOT_SERVED"
        assert error["message"].startswith(
            f"{OTHER_BASE} is not served here; {BASE} and tiny-twin (the twin of {BASE}) are. It is the base of {OTHER_ADAPTER}."
        )
        assert f"`mens up --base {BASE} --base tiny-twin --base {OTHER_BASE}`" in str(
            error
        ) and f"MENS_SERVING_BASE={OTHER_BASE}" in str(error)
        mens = {model["id"]: model["mens"] for model in api.get("/v1/models").json()["data"]}
        assert (mens[BASE]["serves_adapters"], mens[OTHER_BASE]["serves_adapters"]) == (True, False)
        own.stop()
        eventually(lambda: states(api)[own.url] == "down")
        mens = {model["id"]: model["mens"] for model in api.get("/v1/models").json()["data"]}
        assert mens[BASE]["serves_adapters"], "the twin serves them"
        assert "serves_adapters" not in mens[OTHER_BASE], "the one that is down may be back with it"


def test_replica_that_is_back_with_another_base_gets_that_bases_requests(
    app: FastAPI, replicas: tuple[RawReplica, RawReplica]
) -> None:
    own, other = replicas
    with RunningApi(app) as api:
        other.serves, own.serves = own.serves, other.serves
        eventually(lambda: api.get("/v1/replicas").json()["data"][0]["base"] == OTHER_BASE)
        eventually(lambda: api.get("/v1/replicas").json()["data"][1]["base"] == BASE)
        assert (served_by(api, "second"), served_by(api, BASE)) == ("own", "other")


def test_returning_replica_is_warmed_with_models_of_its_base(
    app: FastAPI, replicas: tuple[RawReplica, RawReplica]
) -> None:
    _, other = replicas
    with RunningApi(app) as api:
        assert (served_by(api, BASE), served_by(api, "second")) == ("own", "other")
        other.stop()
        eventually(lambda: states(api)[other.url] == "down")
        other.asked.clear()
        other.start()
        eventually(lambda: states(api)[other.url] == "up")
        assert set(other.models) == {OTHER_ADAPTER}
