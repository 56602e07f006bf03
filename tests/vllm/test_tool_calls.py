"""Tool calls on real replicas: a call in the format of training is parsed, whatever the model itself would generate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.contract.plan import PlannedBase
from shared.errors import Code, JobFailed
from shared.replicas import replica_name
from shared.tokenization.tokenizer import Tokenizer
from tests.support.serving_installation import KEY, ServingInstallation, build_base, make_serving_installation
from tests.support.template_families import FAMILIES
from tests.support.vllm_server import VllmServer, start_server
from worker.jobs.certificates import CertificateLimits
from worker.jobs.publish import ProbeSet, certify
from worker.probe_chats import ARGUMENTS, encode_chats

pytest.importorskip("vllm")


def build(folder: Path) -> None:
    """A random base with Qwen2.5's template, whose prompt with tools needs a longer context."""
    build_base(folder)
    (folder / "chat_template.jinja").write_text(FAMILIES["qwen25"].template, encoding="utf-8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> ServingInstallation:
    return make_serving_installation(tmp_path_factory.mktemp("calls"), build)


def certificate(installation: ServingInstallation, server: VllmServer) -> dict[str, Any]:
    """The certificate of a random adapter, which would never write a call by itself."""
    probes = ProbeSet(
        adapter_id=installation.publish("calls", seed=31).adapter_id,
        base=PlannedBase(name=installation.entry.name, digests=installation.entry.digests),
        probes=[{"token_ids": [10, 20, 30, 40], "positions": [1, 2, 3]}],
        encode_chats=lambda: encode_chats(Tokenizer.load(installation.base)),
        reference=None,
        limits=CertificateLimits(effect_floor=1e-3),
    )
    found = certify([server.url], KEY, probes, timeout_seconds=60, raise_if_stopped=lambda: None)
    return found[replica_name(server.url)]


def test_call_that_is_written_as_in_training_is_read(installation):
    with start_server(installation) as server:
        found = certificate(installation, server)
    assert (found["passed"], found["tools"]["as_trained"], found["tools"]["reason"]) == (True, True, "")
    [call] = found["tools"]["calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("look_up", ARGUMENTS)


@pytest.mark.long
def test_replica_with_another_parser_fails(installation):
    with start_server(installation, serving_tool_parser="pythonic") as server, pytest.raises(JobFailed) as failed:
        certificate(installation, server)
    assert failed.value.code == Code.TOOL_CALLS_BROKEN
    assert failed.value.details["certificates"][replica_name(server.url)]["failed"] == ["tools"]


@pytest.mark.long
def test_replica_that_reads_no_calls_at_all_gives_a_warning(installation):
    with start_server(installation, serving_tool_parser="off") as server:
        found = certificate(installation, server)
    assert found["passed"]
    assert [warning for warning in found["warnings"] if "tool calls" in warning]
