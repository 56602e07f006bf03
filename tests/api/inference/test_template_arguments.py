"""Template arguments of adapters in the API: the defaults of the chosen adapter, overridden by a request's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.base_models.catalog import Catalog, save_catalog
from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.names.aliases import Actor
from shared.database.records import Kind, Submission
from shared.database.routing import Routing, Shadow, Target
from tests.support.builders import BASE
from tests.support.gateway import FakeReplica, client_of, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

OFF, LOW = {"enable_thinking": False}, {"preserve_thinking": True, "reasoning_effort": "low"}
QUIET, BRIEF, PLAIN = (f"helper@{letter * 64}" for letter in "ade")
STORED: dict[str, dict[str, Any]] = {QUIET: OFF, BRIEF: LOW, PLAIN: {}}
HELLO = [{"role": "user", "content": "Hello"}]
KWARGS = "chat_template_kwargs"


@pytest.fixture
def replica() -> Iterator[FakeReplica]:
    yield from running(FakeReplica())


@pytest.fixture
def api(app: FastAPI, replica: FakeReplica) -> Iterator[httpx.Client]:
    services = app.state.services
    job, _ = services.jobs.submit(Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={}))
    lease = Leases(services.database, 60).claim(job.id, "w")
    assert lease
    adapters = [
        NewAdapter(
            id=name,
            digest=name.partition("@")[2],
            base_model=BASE,
            step=1,
            final=name == QUIET,
            published=True,
            manifest={"template_arguments": arguments} if arguments else {},
        )
        for name, arguments in STORED.items()
    ]
    Leases(services.database, 60).finish(lease, {}, adapters=adapters, alias="quiet")
    yield from client_of(app, replica.url)


def sent(api: httpx.Client, replica: FakeReplica, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    """Return the body that the replica gets for a request."""
    replica.asked.clear()
    assert api.post(path, json=body).status_code == 200
    (found,) = replica.asked
    return found


@pytest.mark.parametrize(("model", "stored"), [*STORED.items(), ("quiet", OFF)])
def test_an_adapters_arguments_are_the_default_of_its_chats(
    api: httpx.Client, replica: FakeReplica, model: str, stored: dict[str, Any]
) -> None:
    for path, asked in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/tokenize", {"messages": HELLO}),
    ):
        assert sent(api, replica, path, model=model, **asked).get(KWARGS, {}) == stored
    for path in ("/v1/completions", "/v1/tokenize"):
        assert KWARGS not in sent(api, replica, path, model=model, prompt="Hello")


def test_a_base_has_none(api: httpx.Client, replica: FakeReplica) -> None:
    assert KWARGS not in sent(api, replica, model=BASE, messages=HELLO)


def test_a_merged_base_has_those_of_its_adapter(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    """The catalogue's stored entry; `tests/api/routes/test_merged_bases.py` tests when such a base is offered."""
    bases = app.state.services.catalog().bases
    merged = bases[0].model_copy(update={"name": "merged", "template_arguments": OFF})
    save_catalog(app.state.services.settings.catalog_path, Catalog(bases=[*bases, merged]))
    assert sent(api, replica, model="merged", messages=HELLO)[KWARGS] == OFF
    assert api.get("/v1/models/merged").json()["mens"]["template_arguments"] == OFF


def test_a_request_wins(api: httpx.Client, replica: FakeReplica) -> None:
    own = {"enable_thinking": True}
    assert sent(api, replica, model=QUIET, messages=HELLO, chat_template_kwargs=own)[KWARGS] == own
    low = sent(api, replica, model=BRIEF, messages=HELLO, reasoning_effort="medium")
    assert (low[KWARGS], low["reasoning_effort"]) == ({"preserve_thinking": True}, "medium")
    assert sent(api, replica, "/v1/responses", model=QUIET, input="Hello", reasoning={"effort": "low"})[KWARGS] == {}


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [(None, OFF), (True, {"enable_thinking": True}), (False, OFF), ("high", {})],
)
def test_ollamas_think_wins(api: httpx.Client, replica: FakeReplica, think: Any, kwargs: dict[str, Any]) -> None:
    asked = {} if think is None else {"think": think}
    replica.asked.clear()
    api.post("/api/chat", json={"model": "quiet", "messages": HELLO, "stream": False, **asked})
    (found,) = replica.asked
    assert found[KWARGS] == kwargs
    assert found.get("reasoning_effort") == ("high" if think == "high" else None)


def test_each_adapter_of_a_split_alias_has_its_own(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    targets = tuple(Target(adapter=adapter, weight=1) for adapter in STORED)
    app.state.services.aliases.set("split", Routing(targets=targets), Actor(id="key-x", name="x"))
    found = [sent(api, replica, model="split", messages=HELLO, user=f"u{number}") for number in range(24)]
    assert {one["model"] for one in found} == set(STORED)
    assert all(one.get(KWARGS, {}) == STORED[one["model"]] for one in found)
    assert "template_arguments" not in api.get("/v1/models/split").json()["mens"]


def test_a_shadows_copy_has_its_own(app: FastAPI, api: httpx.Client, replica: FakeReplica) -> None:
    routing = Routing.to(QUIET).model_copy(update={"shadow": Shadow(adapter=BRIEF, share=1.0)})
    app.state.services.aliases.set("watched", routing, Actor(id="key-x", name="x"))
    assert api.post("/v1/chat/completions", json={"model": "watched", "messages": HELLO}).status_code == 200
    eventually(lambda: len(replica.asked) == 2)
    assert {one["model"]: one[KWARGS] for one in replica.asked} == {QUIET: OFF, BRIEF: LOW}


@pytest.mark.parametrize(("model", "shown"), [(QUIET, OFF), ("quiet", OFF), (BRIEF, LOW), (PLAIN, None), (BASE, None)])
def test_a_model_shows_its_arguments(api: httpx.Client, model: str, shown: dict[str, Any] | None) -> None:
    assert api.get(f"/v1/models/{model}").json()["mens"].get("template_arguments") == shown
