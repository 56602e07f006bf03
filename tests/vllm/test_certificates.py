"""Certificates from real replicas: of a base, and of its dequantised twin."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.bases import dequantize
from shared.contract import DeviceSection, QuantSection
from shared.errors import ArtifactInvalid, Code, JobFailed
from shared.planner import PlannedBase
from shared.replicas import replica_name
from shared.settings import Settings
from shared.tokenizer import Tokenizer
from tests.serving.conftest import KEY, Lab, Server, start_server
from worker.attempt import Attempt
from worker.certificates import Limits, ServedBase
from worker.parity import TrainerSide
from worker.probe_chats import encode_chats
from worker.publish import Proof, Replica, certify
from worker.settings import WorkerSettings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TEXTS = ["user\nthe red fox runs near the forest", "a ship sails by the stars\nhello", "Ångström 数据 🙂 x_y():"]


@dataclass(frozen=True)
class Tuned:
    """An adapter as a finished run leaves it."""

    adapter_id: str
    run_dir: Path
    probes: list[dict[str, Any]]


@pytest.fixture(scope="module")
def tuned(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A published adapter, and the run folder with what the NF4 model said of the probes at the end."""
    import torch
    from peft import PeftModel

    from worker.training.model import load_quantised
    from worker.training.prepared import Row
    from worker.training.probes import make_probes, write_probes

    manifest, run_dir = lab.publish("certified", seed=31), tmp_path_factory.mktemp("run")
    shutil.copytree(lab.folder(manifest), run_dir / "adapter")
    cpu, tokenizer = torch.device("cpu"), Tokenizer.load(lab.base)
    model = PeftModel.from_pretrained(load_quantised(lab.base, QuantSection(), cpu), run_dir / "adapter")
    rows = []
    for text in TEXTS:
        ids = np.array(tokenizer.encode(text).ids, dtype=np.uint32)
        rows.append(Row(1, ids, (np.arange(len(ids)) > 2).astype(np.float32), 5, 1.0))
    write_probes(run_dir, make_probes(rows, model, cpu))
    return Tuned(manifest.adapter_id, run_dir, json.loads((run_dir / "probes.json").read_text())["probes"])


@pytest.fixture(scope="module")
def trainer(lab: Lab, tuned: Tuned, tmp_path_factory: pytest.TempPathFactory) -> TrainerSide:
    """The worker's side of publishing, with the real scoring process; no ledger."""
    settings = WorkerSettings(home=lab.home, runs_dir=tmp_path_factory.mktemp("runs"), trainer_threads=1)
    lease, keeper = SimpleNamespace(job=SimpleNamespace(id="job"), token=1), SimpleNamespace(lost=None, requested=None)
    attempt = Attempt(settings, None, lab.storage, lease, keeper, lambda: False)  # type: ignore[arg-type]
    base = PlannedBase(name=lab.entry.name, digests=lab.entry.digests)
    return TrainerSide(attempt, base, DeviceSection(), tuned.run_dir)


@pytest.fixture(scope="module")
def twin_server(lab: Lab) -> Any:
    """A replica of the base's dequantised twin, in the same catalogue."""
    dequantize(Settings(home=lab.home), lab.entry.name, "tiny-twin")
    with start_server(lab, serving_base="tiny-twin") as server:
        yield server


def prove(server: Server, proof: Proof) -> dict[str, Any]:
    return certify([server.url], KEY, proof, timeout_seconds=60, heed=lambda: None)[replica_name(server.url)]


@pytest.fixture
def proof(tuned: Tuned, trainer: TrainerSide) -> Proof:
    return Proof(tuned.adapter_id, tuned.probes, trainer.encode_chats, trainer.scores, Limits(effect_floor=1e-3))


def test_certificate_on_the_base(vllm_server, lab, proof):
    found = prove(vllm_server, proof)
    print(json.dumps(found["parity"]))
    assert found["passed"] and found["failed"] == []
    assert found["base"] == {"name": lab.entry.name, "digest": lab.entry.digest, "twin_of": None, "dtype": "float32"}
    assert found["effect_rms_nats"] > 0.1
    assert found["parity"]["engine_error_max_nats"] < 1e-4
    assert found["parity"]["base_shift_rms_nats"] > 0.01


def test_certificate_on_the_twin_has_no_shift(twin_server, lab, proof):
    found = prove(twin_server, proof)
    print(json.dumps(found["parity"]))
    assert found["passed"]
    assert (found["base"]["name"], found["base"]["twin_of"]) == ("tiny-twin", lab.entry.name)
    assert found["parity"]["engine_error_max_nats"] < 1e-4
    assert found["parity"]["base_shift_max_nats"] < 1e-4


def test_a_shift_over_its_limit_fails_on_the_base_and_passes_on_the_twin(vllm_server, twin_server, proof):
    strict = replace(proof, limits=Limits(effect_floor=1e-3, base_shift=1e-4))
    assert prove(twin_server, strict)["passed"]
    with pytest.raises(JobFailed) as failed:
        prove(vllm_server, strict)
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert failed.value.details["certificates"][replica_name(vllm_server.url)]["failed"] == ["base_shift"]


def test_an_engine_that_computes_other_weights_is_found(vllm_server, twin_server, proof, trainer):
    """The reference is of the twin's weights, the replica serves the base's: the engine seems to compute wrongly."""
    with Replica(twin_server.url, KEY) as twin:
        wrong = twin.served_base()
    with pytest.raises(JobFailed) as failed:
        prove(vllm_server, replace(proof, reference=lambda _: trainer.scores(wrong)))
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert failed.value.details["certificates"][replica_name(vllm_server.url)]["failed"] == ["engine_error"]


def test_every_probe_chat_has_the_trainer_s_ids(vllm_server, proof):
    template = prove(vllm_server, proof)["template"]
    assert template["chats"] == ["plain", "system", "multi-turn", "learnt", "tools", "unicode"]
    assert (template["skipped"], template["equal"], template["difference"]) == ([], True, None)


def test_one_changed_byte_of_the_template_is_red(vllm_server, lab, proof, tmp_path):
    base = shutil.copytree(lab.base, tmp_path / "base")
    template = base / "chat_template.jinja"
    raw = template.read_bytes()
    assert raw.count(b"assistant\\n") == 1
    template.write_bytes(raw.replace(b"assistant\\n", b"assistant\\t"))
    with pytest.raises(JobFailed) as failed:
        prove(vllm_server, replace(proof, encode_chats=lambda: encode_chats(Tokenizer.load(base))))
    assert failed.value.code == Code.ADAPTER_TEMPLATE_MISMATCH
    found = failed.value.details["certificates"][replica_name(vllm_server.url)]
    assert (found["failed"], found["template"]["difference"]["chat"]) == (["template"], "plain")
    assert f"position {found['template']['difference']['position']}" in failed.value.message


def test_the_twin_takes_no_adapter_of_a_third_base(twin_server, lab):
    strange = lab.publish("strange", seed=32, base_digests={**lab.entry.digests, "config.json": "0" * 64})
    with pytest.raises(ArtifactInvalid) as refused, Replica(twin_server.url, KEY) as twin:
        twin.check(strange.adapter_id)
    assert refused.value.code == Code.ADAPTER_BASE_MISMATCH


def test_the_twin_tells_whose_adapters_it_serves(twin_server, lab):
    with twin_server.client() as client:
        limits = client.get("/mens/limits").json()
    assert limits["base_digest"] == lab.entry.digest != limits["served_digest"]


def test_a_worker_with_another_catalogue_does_not_guess(trainer, lab):
    with pytest.raises(ArtifactInvalid) as refused:
        trainer.scores(ServedBase(lab.entry.name, "0" * 64, None, "float32"))
    assert refused.value.code == Code.BASE_DIGEST_MISMATCH
