"""Publishing: measure the effect of an adapter on every serving replica before its job may succeed.

The measurements are forward passes and token ids: the replica returns the log-probability of every probe token, for the base and
for the adapter, and the token ids of the probe chats. `worker/jobs/certificates.py` judges the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shared.contract.plan import PlannedBase
from shared.errors import Code, JobFailed, Unavailable
from shared.replicas import Fit, ReplicaCapabilities, ServedBaseName, TrainedWeights, describe_unserved, serving_remedy
from worker.jobs.certificates import (
    CertificateLimits,
    Measurements,
    Scores,
    ServedBase,
    certificate,
    refuse_failed,
    stop_report,
    template_report,
    tools_report,
)
from worker.probe_chats import QUESTION, TOOLS, EncodedChats
from worker.replica_client import BlockingReplicaClient

DEFAULT_CHAT = "default"
"""Name of the probe chat that is sent without template arguments."""
RETRY_SECONDS = 1.0
REQUEST_SECONDS = 60.0
"""Longest wait for a probe of up to ``USUAL_TOKENS`` tokens; for a longer probe, the wait is proportionally longer."""
USUAL_TOKENS = 512


@dataclass(frozen=True)
class ProbeSet:
    """The probes that measure an adapter.

    Attributes:
        adapter_id: the adapter, already in storage.
        base: the base that it was trained on; only replicas that serve it, or its twin, are measured.
        probes: `worker/training/probes.py` documents their fields.
        encode_chats: returns the trainer's token ids of the probe chats; called for every replica.
        reference: returns the trainer's own scores on the weights that a replica serves. It may take long, and must
            cache its results. If it is None or returns None, the engine error is not measured.
        limits: limits of the certificates.
        template_arguments: template arguments of the adapter's chats.
        weights: the weights that the adapter was trained on; None if unknown.
    """

    adapter_id: str
    base: PlannedBase
    probes: list[dict[str, Any]]
    encode_chats: Callable[[], EncodedChats]
    reference: Callable[[ServedBase], Scores | None] | None
    limits: CertificateLimits
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: TrainedWeights | None = None

    @property
    def trained(self) -> Scores | None:
        """The trainer's own scores, at the end of training or at the checkpoint; None if a probe has none."""
        scores = [probe["trained"] for probe in self.probes if probe.get("trained") is not None]
        return scores if len(scores) == len(self.probes) else None

    def within(self, window: int | None) -> ProbeSet:
        """Return the probes that a replica with a window of this many tokens can score; the deep probe is the last.

        Args:
            window: tokens; None: unknown, and assumed to be the model's own, which the contract's rows fit.
        """
        if window is None:
            return self
        # The replica also writes one token.
        return replace(self, probes=[probe for probe in self.probes if len(probe["token_ids"]) < window])


def certify(
    urls: list[str],
    key: str,
    probes: ProbeSet,
    *,
    timeout_seconds: float,
    raise_if_stopped: Callable[[], None],
) -> dict[str, Any]:
    """Return an adapter's certificates by replica, from every replica that serves its base.

    Args:
        urls: URLs of all replicas.
        key: the serving key.
        probes: probes that measure the adapter.
        timeout_seconds: how long replicas may be unavailable in total.
        raise_if_stopped: called while waiting; raises when the job must stop.

    Raises:
        JobFailed: a certificate failed (see `worker/jobs/certificates.py`), or ``ADAPTER_PRECISION_MISMATCH``: only the
            twin of its base is served, but it was not trained over NF4.
        ArtifactInvalid: refused, with the reason's code.
        Unavailable: ``SERVING_UNAVAILABLE`` for longer than the timeout; ``BASE_NOT_SERVED``: all replicas serve other bases.
    """
    if not urls:
        raise JobFailed(
            Code.SERVING_UNAVAILABLE,
            "No serving replica is configured, so adapters cannot be published.",
            remedy="Set MENS_SERVING_URLS or MENS_SERVING_DNS, or set artifact.publish = false.",
        )
    deadline = time.monotonic() + timeout_seconds
    certificates: dict[str, dict[str, Any]] = {}
    others: set[ServedBaseName] = set()
    twins: list[str] = []
    longest = max((len(probe["token_ids"]) for probe in probes.probes), default=0)
    # The deep probe is one request, and on a CPU its time is about proportional to its length.
    seconds = REQUEST_SECONDS * max(1.0, longest / USUAL_TOKENS)
    for url in urls:
        with BlockingReplicaClient(url, key, seconds) as replica:
            while True:
                raise_if_stopped()
                try:
                    capabilities = replica.capabilities()
                    if capabilities.adapters_digest != probes.base.digest:
                        others.add(capabilities.base_name)
                    elif capabilities.fit_of(probes.weights) is Fit.NONE:
                        twins.append(capabilities.base)
                    else:
                        certificates[replica.name] = _certify_on(replica, capabilities, probes)
                    break
                except Unavailable:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_SECONDS)
    if twins and not certificates:
        raise _other_weights(probes, twins)
    if not certificates:
        raise Unavailable(
            Code.BASE_NOT_SERVED,
            f"{describe_unserved(probes.base.name, others)} It is the base of {probes.adapter_id}.",
            remedy=(
                f"{serving_remedy(probes.base.name, others)}; or train without publishing (`--no-publish`, "
                "artifact.publish = false)."
            ),
        )
    # Raised only at the end, so that the error carries the certificates of all replicas.
    refuse_failed(probes.adapter_id, certificates)
    return certificates


def _other_weights(probes: ProbeSet, twins: list[str]) -> JobFailed:
    """Return the error for a job whose base is served only as its twin, which the job's adapter does not fit."""
    names, base = ", ".join(sorted(set(twins))), probes.base.name
    return JobFailed(
        Code.ADAPTER_PRECISION_MISMATCH,
        f"{probes.adapter_id} was trained on the unquantised {base}. Only its twin is served ({names}), whose "
        "weights are rounded to NF4.",
        remedy=(
            f"Serve the original (`mens up --base {base} --weights original`), or train over NF4 (quant.base = nf4)."
        ),
    )


def _certify_on(replica: BlockingReplicaClient, capabilities: ReplicaCapabilities, probes: ProbeSet) -> dict[str, Any]:
    """Measure the adapter on a replica that serves its base; the certificate may have failed."""
    replica.check(probes.adapter_id)
    # An engine that chose its dtype itself and does not report it: every such engine uses 16 bits.
    served = ServedBase(
        capabilities.base, capabilities.served_digest, capabilities.twin_of, capabilities.dtype or "bfloat16"
    )
    fitting = probes.within(capabilities.context)
    base, base_again, tuned = (
        [replica.scores(model, probe) for probe in fitting.probes]
        for model in (served.name, served.name, probes.adapter_id)
    )
    # Encoded now and not once for all replicas: some templates write the date.
    encoded = probes.encode_chats()
    template = measure_template(replica, probes.adapter_id, encoded, probes.template_arguments)
    reference = probes.reference(served) if probes.reference else None
    # These are scores of all probes; the probes that every replica can hold come first.
    reference = reference and reference[: len(fitting.probes)]
    positions = [probe["positions"] for probe in fitting.probes]
    measured = Measurements(base, base_again, tuned, fitting.trained, reference, positions=positions)
    stop = measure_stop(replica, probes.adapter_id, encoded)
    tools = measure_tools(replica, probes.adapter_id, encoded, probes.template_arguments)
    return certificate(served, measured, template, stop, probes.limits, tools)


def measure_stop(replica: BlockingReplicaClient, model: str, encoded: EncodedChats) -> dict[str, Any]:
    """Test, token by token, that the replica's answers end where training ends a turn; see
    `worker/jobs/certificates.py`.

    Each answer is restricted to that one token, so the result does not depend on what the model would otherwise
    generate.
    """
    ids = next((ids for chat, ids in encoded.chats if chat.prompt), None)
    stopped = {} if ids is None else {end: replica.ends_at(model, ids, end) for end in encoded.ends}
    return stop_report(encoded.ends, stopped)


def measure_tools(
    replica: BlockingReplicaClient, model: str, encoded: EncodedChats, arguments: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Test that the replica reads a tool call that is written as in training; None if the template writes none."""
    if encoded.call is None:
        return None
    text, more = encoded.call
    read = replica.read_call(model, QUESTION, TOOLS, text, {**arguments, **more})
    return tools_report(text, read.calls, read.reason)


def measure_template(
    replica: BlockingReplicaClient, model: str, encoded: EncodedChats, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the template certificate of a model on a replica: the probe chats by its ``/tokenize``, and with template
    arguments also a chat that sets none of them, as the gateway sends it.
    """
    served = [
        replica.token_ids(model, chat.messages, prompt=chat.prompt, tools=chat.tools, arguments=arguments)
        for chat, _ in encoded.chats
    ]
    prompts = [(chat, ids) for chat, ids in encoded.chats if chat.prompt and not chat.tools]
    if arguments and prompts:
        chat, ids = prompts[0]
        default = replace(encoded, chats=[*encoded.chats, (replace(chat, name=DEFAULT_CHAT), ids)])
        served.append(replica.default_prompt_ids(model, chat.messages, arguments))
        return template_report(default, served, arguments)
    return template_report(encoded, served, arguments)
