"""Where answers end: a replica stops at each token at which training ends a turn, whatever the base's config files name."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.services import Services, make_services
from api.settings import ApiSettings
from serving.launch.prepare import served_end_ids
from shared.base_models.config import parse_model_config
from shared.contract.plan import PlannedBase
from shared.database.adapters import NewAdapter
from shared.database.leases import Leases
from shared.database.records import Kind, Submission
from shared.datasets.row_validation import parse_row
from shared.errors import Code, InvalidRequest, JobFailed
from shared.replicas import replica_name
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.labels import label_chats
from shared.tokenization.tokenizer import Tokenizer
from tests.serving.launch.launches import TINY
from tests.support.api_installation import application_of
from tests.support.doubles import FakeJobQueue
from tests.support.scripted_base import ANSWER, END, OTHER_END, TOKENS, build_scripted_base, save_weak_adapter
from tests.support.serving_installation import KEY, ServingInstallation, make_serving_installation
from tests.support.template_families import CASES, FAMILIES, Family, make_base
from tests.support.vllm_server import VllmServer, start_server
from worker.jobs.certificates import CertificateLimits
from worker.jobs.publish import ProbeSet, certify
from worker.probe_chats import EncodedChats, encode_chats

pytest.importorskip("vllm")

LIMIT = 16
MESSAGES = [{"role": "user", "content": "hello"}]
EOS: dict[str, Any] = {"own": ..., "none": None, "another": "<|another|>"}
"""What tokenizer_config.json names."""
LISTED: dict[str, Any] = {"absent": None, "empty": {}, "other": {"eos_token_id": 3}, "others": {"eos_token_id": [3, 4]}}
"""Content of generation_config.json."""


def write_base(folder: Path, family: Family, eos: Any, listed: Any, in_config: int | None) -> Path:
    """A family's base with its EOS named elsewhere, or otherwise."""
    tokens = (*family.tokens, "<|another|>")
    named = family.named if eos is ... else family.named | {"eos_token": eos}
    make_base(folder, dataclasses.replace(family, tokens=tokens, named=named))
    (folder / "config.json").write_text(json.dumps(TINY | {"eos_token_id": in_config}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if listed is not None:
        (folder / "generation_config.json").write_text(json.dumps(listed))
    return folder


def stops_of_vllm(folder: Path, override: tuple[int, ...]) -> set[int]:
    """The ids at which vLLM ends an answer that asks for nothing special, by vLLM's own functions."""
    from vllm.config import ModelConfig
    from vllm.sampling_params import SamplingParams
    from vllm.tokenizers import get_tokenizer

    from serving.vllm_end_tokens_patch import apply_patch

    apply_patch()
    config = SimpleNamespace(
        generation_config="auto", hf_config_path=None, model=str(folder), trust_remote_code=False, revision=None,
        _hf_config_revision=None, code_revision=None, config_format="auto", hf_token=None,
        override_generation_config={"eos_token_id": list(override)} if override else {},
    )  # fmt: skip
    params = SamplingParams(stop_token_ids=[9])
    params.update_from_generation_config(
        ModelConfig.try_get_generation_config(config), get_tokenizer(str(folder)).eos_token_id
    )
    stops = {params.eos_token_id, *(params.stop_token_ids or ())} - {None}
    assert stops == params.all_stop_token_ids, "min_tokens and grammars count them too"
    assert 9 in stops, "the caller's own stay"
    return stops - {9}  # type: ignore[arg-type]


def supervised_ends(tokenizer: Tokenizer) -> set[int]:
    """Ids that training supervises as the end of a turn, over the cases that a template takes."""
    ends = set()
    for case in CASES.values():
        row = parse_row(json.dumps(case).encode(), 1)
        try:
            (labelled,) = label_chats(tokenizer, [find_assistant_spans(tokenizer, row)])
        except InvalidRequest:
            continue
        flags = [*labelled.supervised, False]
        last = [at for at, flag in enumerate(labelled.supervised) if flag and not flags[at + 1]]
        ends |= {labelled.ids[at] for at in last} & tokenizer.end_ids
    return ends


@pytest.mark.parametrize(("eos", "listed", "in_config"), [*product(EOS, LISTED, [None, 5])])
@pytest.mark.parametrize("family", ["qwen3", "gemma", "harmony", "no_prompt"])
def test_replica_stops_exactly_where_training_does(tmp_path, family, eos, listed, in_config):
    folder = write_base(tmp_path, FAMILIES[family], EOS[eos], LISTED[listed], in_config)
    tokenizer = Tokenizer.load(folder)
    stops = stops_of_vllm(folder, served_end_ids(tokenizer, parse_model_config(TINY)))
    assert stops == tokenizer.end_ids
    assert stops_of_vllm(folder, ()) == tokenizer.configured_ends, "what vLLM alone stops at"


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("family", FAMILIES)
def test_replica_stops_at_every_end_that_is_supervised(tmp_path, family, eos):
    folder = write_base(tmp_path, FAMILIES[family], EOS[eos], None, None)
    tokenizer = Tokenizer.load(folder)
    stops = stops_of_vllm(folder, served_end_ids(tokenizer, parse_model_config(TINY)))
    supervised = supervised_ends(tokenizer)
    assert supervised <= stops
    assert tokenizer.end_token is None or supervised


def test_end_token_beyond_the_embedding_is_left_out(tmp_path):
    folder = write_base(tmp_path, FAMILIES["qwen3"], "<|another|>", None, None)
    tokenizer = Tokenizer.load(folder)
    last = max(tokenizer.end_ids)
    assert last not in served_end_ids(tokenizer, parse_model_config(TINY | {"vocab_size": last}))
    assert served_end_ids(None, parse_model_config(TINY)) == ()


# -- a real replica


@pytest.fixture(scope="module", params=[OTHER_END, pytest.param(END, marks=pytest.mark.long)])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServingInstallation:
    """An installation whose base names one EOS and ends its turns with another; and one that names the right one."""
    build = partial(build_scripted_base, eos=request.param)
    return make_serving_installation(tmp_path_factory.mktemp("scripted"), build, save_weak_adapter)


@pytest.fixture(scope="module")
def server(installation: ServingInstallation) -> Iterator[VllmServer]:
    with start_server(installation, serving_max_loras=2) as server:
        yield server


@pytest.fixture(scope="module")
def adapter(installation: ServingInstallation) -> str:
    return installation.publish("scripted").adapter_id


def register(services: Services, installation: ServingInstallation) -> None:
    """Make the stored adapter the result of a job."""
    manifest, leases = installation.publish("scripted"), Leases(services.database, 60)
    base = installation.entry.name
    job, _ = services.jobs.submit(
        Submission(kind=Kind.FINETUNE, base_model=base, name="scripted", contract={}, plan={})
    )
    lease = leases.claim(job.id, "w")
    assert lease
    made = NewAdapter(
        id=manifest.adapter_id, digest=manifest.digest, base_model=base, step=1, final=True, published=True,
        manifest=manifest.model_dump(mode="json"),
    )  # fmt: skip
    leases.finish(lease, {}, adapters=[made], alias="scripted")


@pytest.fixture(scope="module")
def gateway(
    installation: ServingInstallation,
    server: VllmServer,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestClient]:
    """The API in front of the replica, which knows the adapter."""
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
    register(services, installation)
    _, secret = services.keys.create("test")
    with TestClient(application_of(services), headers={"Authorization": f"Bearer {secret}"}) as client:
        yield client


@pytest.fixture(params=["base", "adapter"])
def model(request: pytest.FixtureRequest, installation: ServingInstallation, adapter: str) -> str:
    return installation.entry.name if request.param == "base" else adapter


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def chat(gateway: TestClient, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": MESSAGES, "max_tokens": LIMIT, "temperature": 0, **more}
    return gateway.post("/v1/chat/completions", json=body)


def test_chat_ends(gateway, model):
    found = chat(gateway, model).json()
    (choice,) = found["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
    assert found["usage"]["completion_tokens"] == TOKENS


def test_streamed_chat_ends(gateway, model):
    found = events(chat(gateway, model, stream=True, stream_options={"include_usage": True}))
    choices = [choice for event in found for choice in event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == ANSWER
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert found[-1]["usage"]["completion_tokens"] == TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_response_ends(gateway, model, stream):
    body = {"model": model, "input": "hello", "max_output_tokens": LIMIT, "temperature": 0, "stream": stream}
    response = gateway.post("/v1/responses", json=body)
    found = events(response)[-1]["response"] if stream else response.json()
    (message,) = found["output"]
    assert (found["status"], message["content"][0]["text"]) == ("completed", ANSWER)
    assert found["usage"]["output_tokens"] == TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_text_completion_ends(gateway, model, stream):
    """The token has no other meaning in a text than in a chat, and a base whose config names it stops there too."""
    body = {"model": model, "prompt": "hello\n", "max_tokens": LIMIT, "temperature": 0, "stream": stream}
    response = gateway.post("/v1/completions", json=body)
    choices = [choice for event in (events(response) if stream else [response.json()]) for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == ANSWER
    assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("route", "asked"), [("chat", {"messages": MESSAGES}), ("generate", {"prompt": "hello"})], ids=["chat", "generate"]
)
def test_ollamas_answer_ends(gateway, model, route, asked, stream):
    body = {"model": model, "stream": stream, "options": {"num_predict": LIMIT, "temperature": 0}, **asked}
    lines = [json.loads(line) for line in gateway.post(f"/api/{route}", json=body).text.splitlines()]
    texts = [line["message"]["content"] if route == "chat" else line["response"] for line in lines]
    assert "".join(texts) == ANSWER
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("stop", TOKENS)


def test_callers_own_settings_keep_working(gateway, installation):
    base = installation.entry.name
    (ignoring,) = chat(gateway, base, ignore_eos=True).json()["choices"]
    assert ignoring["finish_reason"] == "length"
    assert ignoring["message"]["content"].startswith("ab\nab\nab")
    longer = chat(gateway, base, min_tokens=8).json()
    assert longer["usage"]["completion_tokens"] >= 8
    (own,) = chat(gateway, base, stop="b").json()["choices"]
    assert (own["message"]["content"], own["finish_reason"]) == ("a", "stop")
    ids = gateway.post(
        "/v1/completions", json={"model": base, "prompt": "b", "max_tokens": 1, "return_token_ids": True}
    )
    assert ids.status_code == 200
    tokenizer = Tokenizer.load(installation.base)
    (b,) = tokenizer.encode("b").ids
    (stopped,) = chat(gateway, base, stop_token_ids=[b]).json()["choices"]
    assert (stopped["message"]["content"], stopped["finish_reason"], stopped["stop_reason"]) == ("a", "stop", b)


def test_a_grammar_ends_at_it(gateway, model):
    """Past the end of the grammar no token but an end is allowed, and the template's is the likeliest."""
    (choice,) = chat(gateway, model, structured_outputs={"regex": "ab"}).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    (choice,) = chat(gateway, model, response_format=form, max_tokens=64).json()["choices"]
    assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"a": 1}, "stop")


def certificate(installation: ServingInstallation, server: VllmServer, adapter: str, encoded: EncodedChats) -> Any:
    base = PlannedBase(name=installation.entry.name, digests=installation.entry.digests)
    tokens = Tokenizer.load(installation.base).encode("hello hello").ids
    probes = [{"token_ids": tokens, "positions": list(range(1, len(tokens)))}]
    asked = ProbeSet(adapter, base, probes, lambda: encoded, None, CertificateLimits(effect_floor=1e-6))
    found = certify([server.url], KEY, asked, timeout_seconds=60, raise_if_stopped=lambda: None)
    return found[replica_name(server.url)]


def test_certificate_holds_each_end_token(installation, server, adapter):
    tokenizer = Tokenizer.load(installation.base)
    found = certificate(installation, server, adapter, encode_chats(tokenizer))
    assert found["passed"]
    assert set(found["stop"]["tokens"]) == {tokenizer.backend.id_to_token(end) for end in tokenizer.end_ids}
    assert END in found["stop"]["tokens"]


def test_certificate_fails_a_replica_that_continues(installation, server, adapter):
    encoded = encode_chats(Tokenizer.load(installation.base))
    (a,) = Tokenizer.load(installation.base).encode("a").ids
    with pytest.raises(JobFailed) as failed:
        certificate(installation, server, adapter, dataclasses.replace(encoded, ends={**encoded.ends, a: "a"}))
    assert failed.value.code == Code.ADAPTER_STOP_MISMATCH
    assert f"a ({a})" in failed.value.message


def test_certificate_ignores_a_token_that_the_model_lacks(installation, server, adapter):
    encoded = encode_chats(Tokenizer.load(installation.base))
    ends = {**encoded.ends, 100_000: "<|beyond|>"}
    assert certificate(installation, server, adapter, dataclasses.replace(encoded, ends=ends))["passed"]
