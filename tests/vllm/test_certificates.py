"""Certificates of adapters on real replicas: of a base, and of its dequantised twin."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.commands.bases.derived import dequantize
from shared.contract.plan import PlannedBase
from shared.contract.sections import DeviceSection, QuantSection
from shared.database.leases import Lease
from shared.database.records import Job, Kind
from shared.errors import ArtifactInvalid, Code, JobFailed
from shared.replicas import replica_name
from shared.settings import Settings
from shared.tokenization.tokenizer import Tokenizer
from tests.support.http_stub import http_stub
from tests.support.serving_installation import KEY, ServingInstallation, build_base, make_serving_installation
from tests.support.vllm_server import VllmServer, start_server
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import CertificateLimits, ServedBase
from worker.jobs.publish import REQUEST_SECONDS, ProbeSet, certify
from worker.jobs.reference_scores import ReferenceScores
from worker.probe_chats import encode_chats
from worker.replica_client import BlockingReplicaClient
from worker.settings import WorkerSettings

LONG = 12 * "user\nthe red fox runs near the forest, and a ship sails by the stars\n"
TEXTS = ["user\nthe red fox runs near the forest", "a ship sails by the stars\nhello", "Ångström 数据 🙂 x_y():"]


@dataclass(frozen=True)
class Tuned:
    """An adapter as a finished run leaves it."""

    adapter_id: str
    run_dir: Path
    probes: list[dict[str, Any]]


def tune(installation: ServingInstallation, run_dir: Path, texts: list[str], window: int = 0) -> Tuned:
    """Publish an adapter, and write its run folder with the NF4 model's scores of the probes at the end of training."""
    import torch
    from peft import PeftModel

    from worker.training.data.prepared import Row
    from worker.training.model.load import load_base
    from worker.training.probes import make_probes, write_probes

    manifest = installation.publish("certified", seed=31)
    shutil.copytree(installation.folder(manifest), run_dir / "adapter")
    cpu, tokenizer = torch.device("cpu"), Tokenizer.load(installation.base)
    model = PeftModel.from_pretrained(load_base(installation.base, QuantSection(), cpu), run_dir / "adapter")
    rows = []
    for text in texts:
        ids = np.array(tokenizer.encode(text).ids, dtype=np.uint32)
        rows.append(Row(1, ids, (np.arange(len(ids)) > 2).astype(np.float32), 5, 1.0))
    write_probes(run_dir, make_probes(rows, model, cpu, window))
    return Tuned(manifest.adapter_id, run_dir, json.loads((run_dir / "probes.json").read_text())["probes"])


def trainer_of(installation: ServingInstallation, tuned: Tuned, runs_dir: Path) -> ReferenceScores:
    """The worker's side of publishing, with the real scoring process and no database."""
    settings = WorkerSettings(home=installation.home, runs_dir=runs_dir, trainer_threads=1)
    job = Job.model_construct(id="job", kind=Kind.FINETUNE, max_gpu_minutes=None, max_wall_seconds=None)
    keeper = SimpleNamespace(lost=None, requested=None, contact_at=math.inf)
    attempt = Attempt(settings, None, installation.storage, Lease(job, 1), keeper, lambda: False)
    base = PlannedBase(name=installation.entry.name, digests=installation.entry.digests)
    return ReferenceScores(attempt, base, DeviceSection(), tuned.run_dir)


@pytest.fixture(scope="module")
def tuned(serving_installation: ServingInstallation, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    return tune(serving_installation, tmp_path_factory.mktemp("run"), TEXTS)


@pytest.fixture(scope="module")
def trainer(
    serving_installation: ServingInstallation, tuned: Tuned, tmp_path_factory: pytest.TempPathFactory
) -> ReferenceScores:
    return trainer_of(serving_installation, tuned, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def twin_server(serving_installation: ServingInstallation) -> Any:
    """A replica of the base's dequantised twin, in the same catalogue: a second vLLM, so what asks it is long."""
    dequantize(Settings(home=serving_installation.home), serving_installation.entry.name, "tiny-twin")
    with start_server(serving_installation, serving_base="tiny-twin") as server:
        yield server


def certificate(server: VllmServer | str, probes: ProbeSet) -> dict[str, Any]:
    """The certificate of one replica, or of what answers at a URL."""
    url = server if isinstance(server, str) else server.url
    found = certify([url], KEY, probes, timeout_seconds=60, raise_if_stopped=lambda: None)
    return found[replica_name(url)]


@pytest.fixture
def probes(tuned: Tuned, trainer: ReferenceScores, serving_installation: ServingInstallation) -> ProbeSet:
    return probes_of(serving_installation, tuned, trainer)


def probes_of(installation: ServingInstallation, tuned: Tuned, trainer: ReferenceScores) -> ProbeSet:
    entry = installation.entry
    base, limits = PlannedBase(name=entry.name, digests=entry.digests), CertificateLimits(effect_floor=1e-3)
    return ProbeSet(tuned.adapter_id, base, tuned.probes, trainer.encode_chats, trainer.scores, limits)


def test_certificate_on_the_base(vllm_server, serving_installation, probes):
    found = certificate(vllm_server, probes)
    print(json.dumps(found["parity"]))
    assert found["passed"] and found["failed"] == []
    assert found["base"] == {
        "name": serving_installation.entry.name,
        "digest": serving_installation.entry.digest,
        "twin_of": None,
        "dtype": "float32",
    }
    assert found["effect_rms_nats"] > 0.1
    assert found["parity"]["engine_error_max_nats"] < 1e-4
    assert found["parity"]["base_shift_rms_nats"] > 0.01


@pytest.mark.long
def test_certificate_on_the_twin_has_no_shift(twin_server, serving_installation, probes):
    found = certificate(twin_server, probes)
    print(json.dumps(found["parity"]))
    assert found["passed"]
    assert (found["base"]["name"], found["base"]["twin_of"]) == ("tiny-twin", serving_installation.entry.name)
    assert found["parity"]["engine_error_max_nats"] < 1e-4
    assert found["parity"]["base_shift_max_nats"] < 1e-4


@pytest.mark.long
def test_base_shift_limit_fails_the_base_and_passes_the_twin(vllm_server, twin_server, probes):
    strict = replace(probes, limits=CertificateLimits(effect_floor=1e-3, base_shift=1e-4))
    assert certificate(twin_server, strict)["passed"]
    with pytest.raises(JobFailed) as failed:
        certificate(vllm_server, strict)
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert failed.value.details["certificates"][replica_name(vllm_server.url)]["failed"] == ["base_shift"]


@pytest.mark.long
def test_engine_with_other_weights_fails_the_engine_error(vllm_server, twin_server, probes, trainer):
    """The reference is of the twin's weights, the replica serves the base's: the engine seems to compute wrongly."""
    with BlockingReplicaClient(twin_server.url, KEY, REQUEST_SECONDS) as twin:
        found = twin.capabilities()
    wrong = ServedBase(found.base, found.served_digest, found.twin_of, str(found.dtype))
    with pytest.raises(JobFailed) as failed:
        certificate(vllm_server, replace(probes, reference=lambda _: trainer.scores(wrong)))
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert failed.value.details["certificates"][replica_name(vllm_server.url)]["failed"] == ["engine_error"]


def test_every_probe_chat_has_the_trainers_token_ids(vllm_server, probes):
    template = certificate(vllm_server, probes)["template"]
    assert template["chats"] == ["plain", "system", "multi-turn", "learnt", "tools", "unicode", "thoughts"]
    assert (template["skipped"], template["equal"], template["difference"]) == ([], True, None)


def test_one_changed_byte_of_the_template_fails(vllm_server, serving_installation, probes, tmp_path):
    base = shutil.copytree(serving_installation.base, tmp_path / "base")
    template = base / "chat_template.jinja"
    raw = template.read_bytes()
    assert raw.count(b"assistant\\n") == 1
    template.write_bytes(raw.replace(b"assistant\\n", b"assistant\\t"))
    with pytest.raises(JobFailed) as failed:
        certificate(vllm_server, replace(probes, encode_chats=lambda: encode_chats(Tokenizer.load(base))))
    assert failed.value.code == Code.ADAPTER_TEMPLATE_MISMATCH
    found = failed.value.details["certificates"][replica_name(vllm_server.url)]
    assert (found["failed"], found["template"]["difference"]["chat"]) == (["template"], "plain")
    assert f"position {found['template']['difference']['position']}" in failed.value.message


@pytest.mark.long
def test_twin_refuses_adapter_of_third_base(twin_server, serving_installation):
    unrelated = serving_installation.publish(
        "unrelated", seed=32, base_digests={**serving_installation.entry.digests, "config.json": "0" * 64}
    )
    with (
        pytest.raises(ArtifactInvalid) as refused,
        BlockingReplicaClient(twin_server.url, KEY, REQUEST_SECONDS) as twin,
    ):
        twin.check(unrelated.adapter_id)
    assert refused.value.code == Code.ADAPTER_BASE_MISMATCH


@pytest.mark.long
def test_twin_reports_whose_adapters_it_serves(twin_server, serving_installation):
    with twin_server.client() as client:
        capabilities = client.get("/mens/limits").json()
    assert capabilities["base_digest"] == serving_installation.entry.digest != capabilities["served_digest"]


def test_worker_with_other_catalogue_is_refused(trainer, serving_installation):
    with pytest.raises(ArtifactInvalid) as refused:
        trainer.scores(ServedBase(serving_installation.entry.name, "0" * 64, None, "float32"))
    assert refused.value.code == Code.BASE_DIGEST_MISMATCH


@contextmanager
def faulty_beyond(position: int, error: float, server: VllmServer) -> Iterator[str]:
    """The URL of the replica as an engine would be whose log-probabilities are wrong from a position on, for every model."""
    with server.client() as client:

        def respond(method: str, target: str, body: bytes, _headers: Message) -> tuple[int, object]:
            found = client.request(method, target, content=body, headers={"Content-Type": "application/json"})
            value = found.json()
            for choice in value.get("choices", ()):
                for tokens in (choice.get("prompt_logprobs") or ())[position:]:
                    for entry in (tokens or {}).values():
                        entry["logprob"] -= error
            return found.status_code, value

        with http_stub(respond) as url:
            yield url


@pytest.mark.long
def test_a_fault_that_only_long_contexts_show_fails_the_depth_alone(tmp_path):
    """It is within the limit over all positions, and no short probe sees it: before there were ranges, this passed."""
    installation = make_serving_installation(tmp_path, partial(build_base, positions=1024))
    (tmp_path / "run").mkdir()
    tuned = tune(installation, tmp_path / "run", [LONG[number:] for number in range(3)], window=700)
    probes = probes_of(installation, tuned, trainer_of(installation, tuned, tmp_path / "runs"))
    *short, deep = tuned.probes
    assert [max(probe["positions"]) < 256 for probe in short] == [True] * 3
    assert (min(deep["positions"]) >= 256, len(deep["positions"])) == (True, 64)
    with start_server(installation) as server:
        sound = certificate(server, probes)
        print(json.dumps(sound["depth"]))
        assert (sound["passed"], [one["from"] for one in sound["depth"]]) == (True, [0, 256])
        limit = sound["parity"]["engine_error_limit_nats"]
        assert max(one["engine_error_rms_nats"] for one in sound["depth"]) < 0.1 * limit
        with faulty_beyond(256, 2 * limit, server) as url:
            assert certificate(url, replace(probes, probes=short))["passed"], "short probes do not see it"
            with pytest.raises(JobFailed, match="from position 256 to 1023") as failed:
                certificate(url, probes)
            faulty = failed.value.details["certificates"][replica_name(url)]
    print(json.dumps(faulty["depth"]))
    assert (failed.value.code, faulty["failed"]) == (Code.ADAPTER_PARITY_FAILED, ["depth"])
    assert faulty["parity"]["engine_error_rms_nats"] < limit
    first, second = faulty["depth"]
    assert first["engine_error_rms_nats"] < 0.1 * limit
    assert second["engine_error_rms_nats"] == pytest.approx(2 * limit, rel=0.1)
