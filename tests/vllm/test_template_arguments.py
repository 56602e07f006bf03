"""Template arguments on a real replica: its token ids are the trainer's, through ``/tokenize`` and through the API."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.services import Services, make_services
from api.settings import ApiSettings
from shared.artifacts.manifests import AdapterManifest
from shared.contract.plan import PlannedBase
from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.serving_installation import KEY, ServingInstallation, build_base, make_serving_installation
from tests.support.template_families import FAMILIES
from tests.support.vllm_server import VllmServer, start_server
from worker.jobs.certificates import CertificateLimits
from worker.jobs.publish import ProbeSet, certify
from worker.probe_chats import CHATS, encode_chats

pytest.importorskip("vllm")
pytestmark = pytest.mark.long

ARGUMENTS: dict[str, dict[str, Any]] = {
    "quiet": {"enable_thinking": False},
    "brief": {"preserve_thinking": True, "reasoning_effort": "low"},
    "open": {},
}
MESSAGES = [{"role": "user", "content": "hello"}]


def build(folder: Path) -> None:
    build_base(folder)
    (folder / "chat_template.jinja").write_text(FAMILIES["qwen38"].template, encoding="utf-8")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> ServingInstallation:
    return make_serving_installation(tmp_path_factory.mktemp("arguments"), build)


@pytest.fixture(scope="module")
def adapters(installation: ServingInstallation) -> dict[str, AdapterManifest]:
    return {
        name: installation.publish(name, **({"template_arguments": arguments} if arguments else {}))
        for name, arguments in ARGUMENTS.items()
    }


@pytest.fixture(scope="module")
def server(installation: ServingInstallation) -> Iterator[VllmServer]:
    with start_server(installation, serving_max_loras=3) as server:
        yield server


def load(installation: ServingInstallation, arguments: dict[str, Any]) -> Tokenizer:
    return Tokenizer.load(installation.base, ChatOptions(arguments))


def register(services: Services, adapters: dict[str, AdapterManifest]) -> None:
    """Make the stored adapters the results of a job."""
    leases = Leases(services.database, 60)
    job, _ = services.jobs.submit(
        Submission(kind=Kind.FINETUNE, base_model="tiny-base", name="quiet", contract={}, plan={})
    )
    lease = leases.claim(job.id, "w")
    assert lease
    made = [
        NewAdapter(
            id=manifest.adapter_id,
            digest=manifest.digest,
            base_model=manifest.base_model,
            step=1,
            final=name == "quiet",
            published=True,
            manifest=manifest.model_dump(mode="json", exclude_none=True),
        )
        for name, manifest in adapters.items()
    ]
    leases.finish(lease, {}, adapters=made, alias="quiet")


@pytest.fixture(scope="module")
def gateway(
    installation: ServingInstallation,
    server: VllmServer,
    adapters: dict[str, AdapterManifest],
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestClient]:
    path = shutil.copy(sqlite_template, tmp_path_factory.mktemp("database") / "mens.db")
    settings = ApiSettings(
        home=installation.home,
        database_url=f"sqlite:///{path}",
        serving_urls=[server.url],
        serving_key=KEY,
        broker_url="redis://127.0.0.1:9/0",
        sandbox="off",
    )
    services = make_services(settings, job_queue=FakeJobQueue())
    register(services, adapters)
    _, secret = services.keys.create("test")
    with TestClient(application_of(services), headers={"Authorization": f"Bearer {secret}"}) as client:
        yield client


def prompt_ids(gateway: TestClient, model: str, **more: Any) -> list[int]:
    body = {"model": model, "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True, **more}
    response = gateway.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["prompt_token_ids"]
    return ids


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_client_that_names_no_argument_gets_the_adapters(
    gateway: TestClient, installation: ServingInstallation, adapters: dict[str, AdapterManifest], name: str
) -> None:
    def expected(**arguments: Any) -> list[int]:
        tokenizer = load(installation, arguments)
        return tokenizer.encode(tokenizer.render(MESSAGES, add_generation_prompt=True).text).ids

    model, stored = adapters[name].adapter_id, ARGUMENTS[name]
    assert prompt_ids(gateway, model) == expected(**stored)
    own = {"enable_thinking": True, "reasoning_effort": "medium"}
    assert prompt_ids(gateway, model, chat_template_kwargs=own) == expected(**stored | own)
    kept = {key: value for key, value in stored.items() if key == "preserve_thinking"}
    assert prompt_ids(gateway, model, reasoning_effort="medium") == expected(**kept, reasoning_effort="medium")


def test_a_base_has_the_templates_own_defaults(gateway: TestClient, installation: ServingInstallation) -> None:
    tokenizer = load(installation, {})
    ids = tokenizer.encode(tokenizer.render(MESSAGES, add_generation_prompt=True).text).ids
    assert prompt_ids(gateway, installation.entry.name) == ids


@pytest.mark.parametrize("name", ARGUMENTS)
def test_certificates_have_the_arguments(
    server: VllmServer, installation: ServingInstallation, adapters: dict[str, AdapterManifest], name: str
) -> None:
    """Every probe chat, thoughts included, is the trainer's id by id; with those of another adapter it is not."""
    entry = installation.entry
    tokenizer = load(installation, ARGUMENTS[name])
    probes = ProbeSet(
        adapter_id=adapters[name].adapter_id,
        base=PlannedBase(name=entry.name, digests=entry.digests),
        probes=[{"token_ids": [5, 6, 7, 8], "positions": [2, 3]}],
        encode_chats=lambda: encode_chats(tokenizer),
        reference=None,
        limits=CertificateLimits(1e-4),
        template_arguments=ARGUMENTS[name],
    )
    [report] = certify([server.url], KEY, probes, timeout_seconds=60, raise_if_stopped=lambda: None).values()
    assert report["template"]["equal"]
    assert report["template"].get("arguments", {}) == ARGUMENTS[name]
    default = ["default"] if ARGUMENTS[name] else []
    assert report["template"]["chats"] == [*(chat.name for chat in CHATS), *default]
