"""Publishing: prove on every serving replica that an adapter loads and acts, before its job may succeed.

The proof is a forward pass: the replica returns the log-probability of every probe token, once for the base and once for
the adapter. An adapter that moves them by no more than the replica's own noise changes nothing, whatever HTTP said.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from shared.errors import ArtifactInvalid, Code, JobFailed, MensError, Unavailable

NOISE_FACTOR = 3.0
RETRY_SECONDS = 1.0
REQUEST_SECONDS = 60.0


class Replica:
    """One serving replica, as the publisher sees it."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self._client = httpx.Client(base_url=url, headers=headers, timeout=REQUEST_SECONDS, trust_env=False)

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

    def log_probabilities(self, model: str, token_ids: list[int]) -> list[float | None]:
        """Log-probability (nats) of each token given those before it; None for the first.

        Raises:
            JobFailed: ``SERVING_REFUSED``. Unavailable: no answer.
        """
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        response = self._send("POST", "/v1/completions", json=body)
        if response.status_code != 200:
            raise _refused(
                self.url,
                f"refused a probe of {model} with {response.status_code}: {response.text[:300]}",
                "Read the serving replica's log; its limits (rank, length) may be too small for this adapter.",
            )
        entries = response.json()["choices"][0]["prompt_logprobs"]
        return [
            entry[str(token)]["logprob"] if entry else None for entry, token in zip(entries, token_ids, strict=True)
        ]

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unavailable(self.url, str(error) or type(error).__name__) from error
        if response.status_code >= 500:
            raise _unavailable(self.url, f"status {response.status_code}")
        return response


def certify(
    urls: list[str],
    key: str,
    base: str,
    adapter_id: str,
    probes: list[dict[str, list[int]]],
    *,
    effect_floor: float,
    timeout_seconds: float,
    heed: Callable[[], None],
) -> dict[str, Any]:
    """Certificates of an adapter, by replica.

    Args:
        urls: every replica.
        key: the serving key.
        base: the base model's served name.
        adapter_id: the adapter, already in storage.
        probes: token ids and the positions that are compared.
        effect_floor: least effect in nats, RMS over positions.
        timeout_seconds: how long a replica may be away in total.
        heed: called while waiting; raises when the job was asked to stop.

    Raises:
        JobFailed: ``ADAPTER_NO_EFFECT`` or ``SERVING_REFUSED``. ArtifactInvalid: refused, with the reason's code.
        Unavailable: ``SERVING_UNAVAILABLE`` for longer than the timeout.
    """
    if not urls:
        raise JobFailed(
            Code.SERVING_UNAVAILABLE,
            "No serving replica is configured, so nothing can be published.",
            remedy="Set MENS_SERVING_URLS, or ask for artifact.publish = false.",
        )
    deadline = time.monotonic() + timeout_seconds
    certificates = {}
    for url in urls:
        certify_replica = functools.partial(_certify_one, url, key, base, adapter_id, probes)
        certificates[url] = _patiently(certify_replica, deadline, heed)
    _refuse_without_effect(adapter_id, certificates, effect_floor)
    return certificates


def _certify_one(url: str, key: str, base: str, adapter_id: str, probes: list[dict[str, list[int]]]) -> dict[str, Any]:
    replica = Replica(url, key)
    replica.check(adapter_id)
    noise, effect = [], []
    for probe in probes:
        first, second, tuned = (
            replica.log_probabilities(model, probe["token_ids"]) for model in (base, base, adapter_id)
        )
        noise += _differences(first, second, probe["positions"])
        effect += _differences(first, tuned, probe["positions"])
    return {
        "probes": len(probes),
        "positions": len(effect),
        "effect_rms_nats": _rms(effect),
        "effect_max_nats": max(map(abs, effect), default=0.0),
        "noise_rms_nats": _rms(noise),
    }


def _refuse_without_effect(adapter_id: str, certificates: dict[str, Any], floor: float) -> None:
    for url, certificate in certificates.items():
        effect, noise = certificate["effect_rms_nats"], certificate["noise_rms_nats"]
        if not effect > max(floor, NOISE_FACTOR * noise):
            raise JobFailed(
                Code.ADAPTER_NO_EFFECT,
                f"{adapter_id} changes nothing on {url}: it moves the probes by {effect:.2e} nats (noise {noise:.2e}).",
                remedy="Train longer or with a higher learning rate; if the loss did fall, the served base is another one.",
                details={"certificates": certificates},
            )


def _patiently(call: Callable[[], dict[str, Any]], deadline: float, heed: Callable[[], None]) -> dict[str, Any]:
    while True:
        heed()
        try:
            return call()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _differences(one: list[float | None], other: list[float | None], positions: list[int]) -> list[float]:
    return [(other[i] or 0.0) - (one[i] or 0.0) for i in positions]


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0


def _error_of(url: str, response: httpx.Response) -> dict[str, Any]:
    try:
        error: dict[str, Any] = response.json()["error"]
    except (ValueError, KeyError):
        remedy = "Is that address a Mens serving replica?"
        raise _refused(url, f"answers {response.status_code} without a reason", remedy) from None
    return error


def _refused(url: str, what: str, remedy: str) -> JobFailed:
    return JobFailed(Code.SERVING_REFUSED, f"The replica {url} {what}.", remedy=remedy)


def _unavailable(url: str, reason: str) -> MensError:
    return Unavailable(
        Code.SERVING_UNAVAILABLE,
        f"The serving replica {url} does not answer ({reason}).",
        remedy="Start it, or take it out of MENS_SERVING_URLS.",
    )
