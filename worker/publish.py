"""Publishing: prove on every serving replica what an adapter does, before its job may succeed.

The proof is forward passes and token ids: the replica returns the log-probability of every probe token, for the base and
for the adapter, and the token ids of the probe chats. `worker/certificates.py` judges the numbers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from shared.errors import ArtifactInvalid, Code, JobFailed, MensError, Unavailable
from shared.replicas import replica_name
from worker.certificates import (
    Limits,
    Measurements,
    Scores,
    ServedBase,
    certificate,
    refuse_failed,
    template_report,
)
from worker.probe_chats import EncodedChats, ProbeChat

RETRY_SECONDS = 1.0
REQUEST_SECONDS = 60.0


class Replica:
    """One serving replica, as the publisher sees it."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self._client = httpx.Client(base_url=url, headers=headers, timeout=REQUEST_SECONDS, trust_env=False)

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def check(self, adapter_id: str) -> None:
        """Ask the replica to fetch and verify the adapter.

        Raises:
            ArtifactInvalid: refused, with the replica's own code. Unavailable: no answer.
        """
        response = self._send("GET", f"/mens/adapters/{quote(adapter_id, safe='')}")
        if response.status_code == 200:
            return
        if response.status_code in (401, 403):
            raise _refused(
                self.url, "does not take this worker's serving key", "Set the same MENS_SERVING_KEY on both."
            )
        error = _error_of(self.url, response)
        code = error["code"] if error["code"] in Code.__members__ else Code.SERVING_REFUSED
        raise ArtifactInvalid(Code(code), error["message"], remedy=error.get("remedy") or "", param=error.get("param"))

    def served_base(self) -> ServedBase:
        """What the replica serves.

        Raises:
            JobFailed: ``SERVING_REFUSED``. Unavailable: no answer.
        """
        response = self._send("GET", "/mens/limits")
        try:
            facts = response.json()
            # An engine that was left to choose its dtype and does not tell it: every such engine takes 16 bits.
            dtype = facts["dtype"] or "bfloat16"
            return ServedBase(facts["base"], facts["served_digest"], facts["twin_of"], dtype)
        except (ValueError, KeyError, TypeError):
            what = f"does not say what it serves (status {response.status_code})"
            raise _refused(self.url, what, "Run the same release of Mens on every tier.") from None

    def scores(self, model: str, probe: dict[str, Any]) -> list[float]:
        """Log-probability (nats) of a probe's tokens at its positions, each given all tokens before it.

        Raises:
            JobFailed: ``SERVING_REFUSED``. Unavailable: no answer.
        """
        ids = probe["token_ids"]
        body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        response = self._send("POST", "/v1/completions", json=body)
        if response.status_code != 200:
            raise _refused(
                self.url,
                f"refused a probe of {model} with {response.status_code}: {response.text[:300]}",
                "Read the serving replica's log; its limits (rank, length) may be too small for this adapter.",
            )
        entries = response.json()["choices"][0]["prompt_logprobs"]
        return [entries[at][str(ids[at])]["logprob"] for at in probe["positions"]]

    def token_ids(self, model: str, chat: ProbeChat) -> list[int] | None:
        """What the replica's template and tokenizer make of a chat; None when they refuse it.

        Raises:
            Unavailable: no answer.
        """
        body: dict[str, Any] = {"model": model, "messages": chat.messages, "add_generation_prompt": chat.prompt}
        response = self._send("POST", "/tokenize", json=body | ({"tools": chat.tools} if chat.tools else {}))
        if response.status_code != 200:
            return None
        ids: list[int] = response.json()["tokens"]
        return ids

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unavailable(self.url, str(error) or type(error).__name__) from error
        if response.status_code >= 500:
            raise _unavailable(self.url, f"status {response.status_code}")
        return response


@dataclass(frozen=True)
class Proof:
    """What an adapter is measured with.

    Attributes:
        adapter_id: the adapter, already in storage.
        probes: `worker/training/probes.py` says what is in each.
        encode_chats: gives the trainer's token ids of the probe chats; called for every replica.
        reference: gives the trainer's own scores on the weights that a replica serves; None: engine error is not asked
            for. It may take long, and must remember what it found.
        limits: what must hold.
    """

    adapter_id: str
    probes: list[dict[str, Any]]
    encode_chats: Callable[[], EncodedChats]
    reference: Callable[[ServedBase], Scores] | None
    limits: Limits

    @property
    def trained(self) -> Scores | None:
        """Scores of the NF4 model at the end of training; None when a probe has none."""
        scores = [probe.get("trained") for probe in self.probes]
        return None if None in scores else scores  # type: ignore[return-value]


def certify(
    urls: list[str],
    key: str,
    proof: Proof,
    *,
    timeout_seconds: float,
    heed: Callable[[], None],
) -> dict[str, Any]:
    """Certificates of an adapter, by replica.

    Args:
        urls: every replica.
        key: the serving key.
        proof: what is measured, and how.
        timeout_seconds: how long a replica may be away in total.
        heed: called while waiting; raises when the job was asked to stop.

    Raises:
        JobFailed: a certificate failed (see `worker/certificates.py`), or ``SERVING_REFUSED``.
        ArtifactInvalid: refused, with the reason's code.
        Unavailable: ``SERVING_UNAVAILABLE`` for longer than the timeout.
    """
    if not urls:
        raise JobFailed(
            Code.SERVING_UNAVAILABLE,
            "No serving replica is configured, so nothing can be published.",
            remedy="Set MENS_SERVING_URLS or MENS_SERVING_DNS, or ask for artifact.publish = false.",
        )
    deadline = time.monotonic() + timeout_seconds
    certificates = {}
    for url in urls:
        with Replica(url, key) as replica:
            certify_replica = functools.partial(_certify_one, replica, proof)
            certificates[replica_name(url)] = _patiently(certify_replica, deadline, heed)
    refuse_failed(proof.adapter_id, certificates)
    return certificates


def _certify_one(replica: Replica, proof: Proof) -> dict[str, Any]:
    replica.check(proof.adapter_id)
    served = replica.served_base()
    base, base_again, tuned = (
        [replica.scores(model, probe) for probe in proof.probes]
        for model in (served.name, served.name, proof.adapter_id)
    )
    encoded = proof.encode_chats()
    ids = [replica.token_ids(proof.adapter_id, chat) for chat, _ in encoded.chats]
    measured = Measurements(
        base, base_again, tuned, proof.trained, proof.reference(served) if proof.reference else None
    )
    return certificate(served, measured, template_report(encoded, ids), proof.limits)


def _patiently(call: Callable[[], dict[str, Any]], deadline: float, heed: Callable[[], None]) -> dict[str, Any]:
    while True:
        heed()
        try:
            return call()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _error_of(url: str, response: httpx.Response) -> dict[str, Any]:
    try:
        error: dict[str, Any] = response.json()["error"]
    except (ValueError, KeyError):
        remedy = "Is that address a Mens serving replica?"
        raise _refused(url, f"answers {response.status_code} without a reason", remedy) from None
    return error


def _refused(url: str, what: str, remedy: str) -> JobFailed:
    return JobFailed(Code.SERVING_REFUSED, f"The serving {replica_name(url)} {what}.", remedy=remedy)


def _unavailable(url: str, reason: str) -> MensError:
    return Unavailable(
        Code.SERVING_UNAVAILABLE,
        f"The serving {replica_name(url)} does not answer ({reason}).",
        remedy="Start it, or take it out of MENS_SERVING_URLS.",
    )
