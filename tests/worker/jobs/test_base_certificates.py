"""The periodic measurement of merged models on the replicas that serve them: fake replicas, a real database and
catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.merge_fidelity import PROBES_NAME
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    MergedFrom,
    digest_model_folder,
    save_catalog,
)
from shared.database.base_certificates import BaseCertificates
from shared.database.connection import Database
from shared.hashing import digest_file
from shared.replicas import replica_name
from shared.tokenization.tokenizer import Tokenizer
from tests.support.builders import base_entry
from tests.support.http_stub import http_stub
from tests.support.merged_models import PROBES, write_merged
from worker.jobs.base_certificates import BaseCertifier
from worker.probe_chats import encode_chats
from worker.settings import WorkerSettings


@dataclass
class MergedReplica:
    """A replica that serves a merged model as its base, and gives the probes the scores that the merge has recorded.

    Attributes:
        error: nats by which its scores differ.
        noise: nats by which each answer differs from the one before.
        status: status of its responses.
    """

    entry: BaseModelEntry
    tokens: dict[str, list[int]]
    served: str = ""
    instance: str | None = "start-1"
    error: float = 0.0
    noise: float = 0.0
    status: int = 200
    url: str = ""
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    def respond(self, method: str, path: str, content: bytes, headers: Message) -> tuple[int, dict[str, Any]]:
        self.seen.append((path, headers.get("Authorization")))
        if self.status != 200:
            return self.status, {}
        if method == "GET":
            digest = self.served or self.entry.digest
            found = {"base": self.entry.name, "served_digest": digest, "dtype": "bfloat16", "max_lora_rank": 16}
            return 200, found | {"instance": self.instance}
        body = json.loads(content)
        assert body["model"] == self.entry.name
        if path == "/tokenize":
            return 200, {"tokens": self.tokens[json.dumps([body["messages"], body["add_generation_prompt"]])]}
        if "allowed_token_ids" in body:
            return 200, {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
        (probe,) = PROBES
        assert body["prompt"] == probe.token_ids
        scores = dict(zip(probe.positions, probe.merged, strict=True))
        self.error += self.noise
        entries = [
            {str(token): {"logprob": scores[at] + self.error}} if at in scores else None
            for at, token in enumerate(body["prompt"])
        ]
        return 200, {"choices": [{"prompt_logprobs": entries}]}


@pytest.fixture
def entry(tmp_path: Path) -> BaseModelEntry:
    """A merged model that is a base of the catalogue."""
    folder = tmp_path / "model"
    manifest = write_merged(folder, base_entry())
    merged = MergedFrom(
        digest=manifest.digest,
        adapter_id=manifest.adapter_id,
        base_model=manifest.base_model,
        probes_digest=digest_file(folder / PROBES_NAME),
    )
    source = LocalSource(path=str(folder))
    entry = BaseModelEntry(name="m", source=source, digests=digest_model_folder(folder), merged_from=merged)
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[entry]))
    return entry


@pytest.fixture
def replica(entry: BaseModelEntry, tmp_path: Path) -> Iterator[MergedReplica]:
    encoded = encode_chats(Tokenizer.load(tmp_path / "model"))
    tokens = {json.dumps([chat.messages, chat.prompt]): ids for chat, ids in encoded.chats}
    replica = MergedReplica(entry, tokens)
    with http_stub(replica.respond) as url:
        replica.url = url
        yield replica


@pytest.fixture
def certifier(replica: MergedReplica, tmp_path: Path, database: Database) -> BaseCertifier:
    settings = WorkerSettings(home=tmp_path, serving_urls=[replica.url], serving_key="serving-key")
    return BaseCertifier(settings, BaseCertificates(database))


def stored(certifier: BaseCertifier, entry: BaseModelEntry) -> dict[str, Any]:
    (found,) = certifier.certificates.of(entry.digest)
    return found.certificate


def test_a_replica_is_measured_once_for_each_of_its_starts(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry
) -> None:
    name = replica_name(replica.url)
    assert certifier.run_round() == [name]
    found = stored(certifier, entry)
    assert found["passed"] and found["base"]["digest"] == entry.digest
    assert found["parity"]["reference_dtype"] == "float32"
    assert (found["parity"]["engine_error_rms_nats"], found["parity"]["engine_error_limit_nats"]) == (0.0, 0.05)
    assert found["effect_rms_nats"] == pytest.approx(2.0), "the base's recorded scores are 2 nats from the model's"
    assert found["template"]["equal"] and found["parity"]["base_shift_rms_nats"] is None
    assert {key for _, key in replica.seen} == {"Bearer serving-key"}
    assert certifier.run_round() == []
    replica.instance = "start-2"
    assert certifier.run_round() == [name]


@pytest.mark.parametrize(
    ("behaviour", "failed"),
    [({"error": 0.1}, "engine_error"), ({"error": float("nan")}, "effect"), ({"error": -2.0}, "effect")],
)
def test_what_the_merge_did_not_say_fails(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry, behaviour: dict[str, float], failed: str
) -> None:
    vars(replica).update(behaviour)
    certifier.run_round()
    found = stored(certifier, entry)
    assert not found["passed"] and failed in found["failed"]
    replica.error, replica.instance = 0.0, "start-2"
    certifier.run_round()
    assert stored(certifier, entry)["passed"], "a start that is sound replaces it"


def test_an_effect_within_the_replicas_own_noise_is_none(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry
) -> None:
    replica.noise = 1.0
    certifier.run_round()
    found = stored(certifier, entry)
    assert found["noise_rms_nats"] == pytest.approx(1.0) and "effect" in found["failed"]


def test_another_template_fails(certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry) -> None:
    first = next(iter(replica.tokens))
    replica.tokens[first] = [*replica.tokens[first], 1]
    certifier.run_round()
    found = stored(certifier, entry)
    assert (found["failed"], found["template"]["difference"]["server_id"]) == (["template"], 1)


def test_a_replica_of_another_base_is_left_alone(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry
) -> None:
    replica.served = "0" * 64
    assert certifier.run_round() == []
    assert certifier.certificates.of(entry.digest) == []
    assert [path for path, _ in replica.seen] == ["/mens/limits"]


def test_a_replica_that_is_away_keeps_its_certificate(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry
) -> None:
    certifier.run_round()
    replica.status = 503
    assert certifier.run_round() == []
    assert stored(certifier, entry)["passed"]
    certifier.settings.serving_urls[:] = ["http://127.0.0.1:9"]
    certifier.run_round()
    assert certifier.certificates.of(entry.digest) == []


def test_probes_that_were_changed_certify_nothing(
    certifier: BaseCertifier, replica: MergedReplica, entry: BaseModelEntry, tmp_path: Path
) -> None:
    path = tmp_path / "model" / PROBES_NAME
    path.write_text(path.read_text().replace("-1.0", "-1.5"))
    assert certifier.run_round() == []
    assert certifier.certificates.of(entry.digest) == []


def test_without_merged_models_no_replica_is_queried(certifier: BaseCertifier, replica: MergedReplica) -> None:
    save_catalog(certifier.settings.catalog_path, Catalog())
    assert certifier.run_round() == []
    assert not replica.seen
