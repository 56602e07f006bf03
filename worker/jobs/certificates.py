"""Certificates: the measurements of an adapter on one replica, and the verdict on them. Pure.

    effect    the adapter moves the replica's log-probabilities of the probe tokens, by more than the replica's own noise
    depth     engine error by ranges of positions, each limited: some faults show only in long contexts
    template  the replica turns the probe chats into the trainer's token ids, id by id
    stop      an answer of the replica ends at each token at which training ends a turn
    tools     the replica reads a tool call that is written as in training
    parity    engine error: the replica against the trainer's own forward pass on the same weights; limited
              base shift: the replica against the NF4 model that was trained; reported, limited only if a limit is set

All numbers are nats, over the probe positions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from shared.errors import Code, JobFailed
from shared.model_card.self_evaluation import SHIFT_REMEDY
from worker.probe_chats import ARGUMENTS, TOOLS, EncodedChats, first_difference
from worker.run_folder import DEPTHS
from worker.settings import WorkerSettings

# A smaller difference may be noise between the trainer's and the replica's arithmetic.
NOISE_FACTOR = 3.0
LEAST_POSITIONS = 16
"""Minimum number of positions for judging a range of depths; from fewer, an RMS means little."""
DRIFT_FACTOR, DRIFT_SHARE = 3.0, 0.2
"""A range causes a warning if its error exceeds both this multiple of the first range's error and this share of the
limit.
"""
ENGINE_ERROR_LIMITS = {"float32": 1e-4}
"""RMS limits by served dtype. The measured error in fp32 is 1.3e-6."""
LOW_PRECISION_LIMIT = 0.05
"""RMS limit for every other dtype. Two engines that round to 8 bits at different places do not agree better: the
measured error is 0.017, and 0.027 for an adapter on every layer of a Qwen3.5.
"""

Scores = Sequence[Sequence[float]]
"""Log-probabilities of the probe positions, by probe."""


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The base that a replica serves, as the replica reports it.

    Attributes:
        name: the model name in requests.
        digest: digest of its files.
        twin_of: name of its original, if it is a dequantised twin.
        dtype: dtype that the engine computes in.
    """

    name: str
    digest: str
    twin_of: str | None
    dtype: str

    @property
    def engine_error_limit(self) -> float:
        """Largest RMS engine error that passes."""
        return ENGINE_ERROR_LIMITS.get(self.dtype, LOW_PRECISION_LIMIT)


@dataclass(frozen=True, slots=True)
class CertificateLimits:
    """The limits that a certificate is judged by.

    Attributes:
        effect_floor: minimum effect.
        base_shift: largest RMS base shift; None: it is only reported.
        shift_warning: share of the effect from which a base shift causes a warning.
    """

    effect_floor: float
    base_shift: float | None = None
    shift_warning: float = 0.1

    @classmethod
    def of(cls, settings: WorkerSettings) -> CertificateLimits:
        """Return the limits of a worker's settings."""
        return cls(settings.effect_floor, settings.base_shift_limit, settings.shift_warning)


@dataclass(frozen=True, slots=True)
class Measurements:
    """Log-probabilities of the probe positions, by source.

    Attributes:
        base, base_again: the replica's base, measured twice: the difference is noise.
        served: the replica's adapter.
        trained: the trainer's own model, at the end of training or at the checkpoint; None: not recorded.
        reference: transformers and peft on the weights that the replica serves; None: not measured.
        positions: the probe positions themselves; None: the depth is not reported.
        served_again: ``served``, measured again, if the replica does not serve the base: the difference is noise.
        reference_dtype: dtype in which ``reference`` was computed; None: the served one.
    """

    base: Scores
    base_again: Scores
    served: Scores
    trained: Scores | None
    reference: Scores | None
    served_again: Scores | None = None
    positions: Sequence[Sequence[int]] | None = None
    reference_dtype: str | None = None

    @property
    def noise(self) -> list[float]:
        """Differences between two measurements of one model, position by position."""
        if self.served_again is None:
            return differences(self.base, self.base_again)
        return differences(self.served, self.served_again)


def template_report(
    encoded: EncodedChats,
    served: Sequence[Sequence[int] | None],
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the template certificate.

    Args:
        encoded: the trainer's token ids.
        served: the replica's token ids, chat by chat; None if it refused the chat.
        arguments: template arguments that both were rendered with.
    """
    pairs = zip(encoded.chats, served, strict=True)
    differing = ((chat.name, first_difference(ours, theirs)) for (chat, ours), theirs in pairs)
    difference = next(({"chat": name, **where} for name, where in differing if where), None)
    return {
        "chats": [chat.name for chat, _ in encoded.chats],
        "skipped": encoded.skipped,
        "tokens": sum(len(ids) for _, ids in encoded.chats),
        "equal": difference is None,
        "difference": difference,
        **({"arguments": dict(arguments)} if arguments else {}),
    }


def stop_report(ends: Mapping[int, str], stopped: Mapping[int, bool]) -> dict[str, Any]:
    """Return the stop certificate.

    Args:
        ends: tokens at which training ends a turn, by id.
        stopped: whether the replica's answer ended at each; empty if no answer could be requested.
    """
    return {
        "tokens": [ends[token] for token in stopped],
        "missed": [{"id": token, "token": ends[token]} for token, ended in stopped.items() if not ended],
    }


def tools_report(text: str, read: Sequence[tuple[str, str]], reason: str) -> dict[str, Any]:
    """Return the tool-call certificate.

    Args:
        text: the answer, written by the template.
        read: name and arguments of each call that the replica read from it.
        reason: why no complete answer was received; empty if one was.
    """
    expected = [(TOOLS[0]["function"]["name"], ARGUMENTS)]
    calls = [{"name": name, "arguments": arguments} for name, arguments in read]
    as_trained = [(name, _json_or_none(arguments)) for name, arguments in read] == expected
    return {"answer": text, "calls": calls, "as_trained": as_trained, "reason": reason}


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def certificate(
    base: ServedBase,
    measured: Measurements,
    template: dict[str, Any],
    stop: dict[str, Any],
    limits: CertificateLimits,
    tools: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the certificate that is stored with the adapter for one replica; ``failed`` names the failed parts.

    Args:
        tools: None: the template writes no tool calls, so they are not part of the certificate.
    """
    effect = differences(measured.base, measured.served)
    engine_limit = None if measured.reference is None else base.engine_error_limit
    report: dict[str, Any] = {
        "base": asdict(base),
        "probes": len(measured.served),
        "positions": len(effect),
        "effect_rms_nats": rms(effect),
        "effect_max_nats": largest(effect),
        "noise_rms_nats": rms(measured.noise),
        "effect_floor_nats": limits.effect_floor,
        "template": template,
        "stop": stop,
        **({"tools": tools} if tools else {}),
        "parity": {
            "reference_dtype": None if measured.reference is None else measured.reference_dtype or base.dtype,
            **_error_numbers("engine_error", measured.reference, measured.served, engine_limit),
            **_error_numbers("base_shift", measured.trained, measured.served, limits.base_shift),
        },
    }
    report["depth"] = _depth_report(measured)
    parity, effect_rms = report["parity"], report["effect_rms_nats"]
    shift = parity["base_shift_rms_nats"]
    parity["shift_share"] = shift / effect_rms if shift is not None and effect_rms else None
    report["warnings"] = [
        *_warnings(parity["shift_share"], limits.shift_warning),
        *_drift_warnings(report["depth"], engine_limit),
        *([f"The replica was not tested with tool calls: {tools['reason']}."] if tools and tools["reason"] else []),
    ]
    least_effect = max(limits.effect_floor, NOISE_FACTOR * report["noise_rms_nats"])
    # Written so that a number that is not finite never passes: every comparison with NaN is false.
    verdicts = {
        "template": bool(template["equal"] and template["chats"]),
        "stop": not stop["missed"],
        "tools": tools is None or bool(tools["reason"]) or tools["as_trained"],
        "effect": report["effect_rms_nats"] > least_effect,
        "engine_error": _within(parity["engine_error_rms_nats"], parity["engine_error_limit_nats"]),
        "depth": all(
            _within(depth_range["engine_error_rms_nats"], engine_limit) for depth_range in _judged(report["depth"])
        ),
        "base_shift": _within(parity["base_shift_rms_nats"], parity["base_shift_limit_nats"]),
    }
    failed = [name for name, passed in verdicts.items() if not passed]
    return {**report, "failed": failed, "passed": not failed}


def _warnings(shift_share: float | None, limit: float) -> list[str]:
    """Return warnings about results that passed but that users of the adapter should know."""
    if shift_share is None or not shift_share >= limit:
        return []
    lost = f"the base shift is {100 * shift_share:.0f} % of what the adapter changes"
    return [f"The served model loses part of the training: {lost}. {SHIFT_REMEDY}"]


def _depth_report(measured: Measurements) -> list[dict[str, Any]]:
    """Return the numbers of each range of depths in which positions were measured."""
    if measured.positions is None:
        return []
    at = [position for probe in measured.positions for position in probe]
    expected = {"engine_error": measured.reference, "base_shift": measured.trained, "effect": measured.base}
    errors = {name: scores and differences(scores, measured.served) for name, scores in expected.items()}
    rows = []
    for begin, end in pairwise((0, *DEPTHS)):
        inside = [index for index, position in enumerate(at) if begin <= position < end]
        numbers = {
            f"{name}_rms_nats": rms([values[i] for i in inside]) if values else None for name, values in errors.items()
        }
        rows += [{"from": begin, "to": end, "positions": len(inside), **numbers}] if inside else []
    return rows


def _judged(depth: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ranges that are judged: the first one, because many deep positions would hide an error in a few short
    answers; and each deeper one with enough positions. A single range is not judged again, because it equals the whole.
    """
    judged = [
        depth_range for depth_range in depth if depth_range["from"] == 0 or depth_range["positions"] >= LEAST_POSITIONS
    ]
    return judged if len(depth) > 1 else []


def _drift_warnings(depth: Sequence[dict[str, Any]], limit: float | None) -> list[str]:
    """Return a warning if the engine error grows with the depth but stays within its limit."""
    judged = _judged(depth)
    if limit is None or not judged:
        return []
    first, *deeper = judged
    shallow = first["engine_error_rms_nats"]
    grown = [
        depth_range
        for depth_range in deeper
        if limit >= depth_range["engine_error_rms_nats"] > max(DRIFT_FACTOR * shallow, DRIFT_SHARE * limit)
    ]
    return [
        f"The engine error grows with the context: {depth_range['engine_error_rms_nats']:.1e} nats from position "
        f"{depth_range['from']} on, "
        f"{shallow:.1e} before position {first['to']}. Check vLLM's settings of long contexts, such as RoPE scaling."
        for depth_range in grown[-1:]
    ]


def _error_numbers(name: str, expected: Scores | None, served: Scores, limit: float | None) -> dict[str, Any]:
    error = None if expected is None else differences(expected, served)
    return {
        f"{name}_rms_nats": None if error is None else rms(error),
        f"{name}_max_nats": None if error is None else largest(error),
        f"{name}_limit_nats": limit,
    }


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def refuse_failed(adapter_id: str, certificates: dict[str, dict[str, Any]]) -> None:
    """Raise for the first certificate, by replica, that did not pass.

    Raises:
        JobFailed: ``ADAPTER_TEMPLATE_MISMATCH``, ``ADAPTER_STOP_MISMATCH``, ``TOOL_CALLS_BROKEN``, ``ADAPTER_NO_EFFECT`` or
            ``ADAPTER_PARITY_FAILED``, with the numbers, and all certificates in the details.
    """
    for name, report in certificates.items():
        if not report["passed"]:
            code, reason, remedy = _explain(report)
            message = f"{adapter_id} on the serving {name}: {reason}."
            raise JobFailed(code, message, remedy=remedy, details={"certificates": certificates})


def _explain(report: dict[str, Any]) -> tuple[Code, str, str]:
    """Return the error code, reason and remedy for the first check that a certificate failed."""
    parity = report["parity"]
    match report["failed"][0]:
        case "template":
            difference = report["template"]["difference"]
            reason = "no probe chat could be compared"
            if difference and difference.get("refused"):
                reason = f"the replica refuses the probe chat {difference['chat']!r}, which the base's template accepts"
            elif difference:
                reason = (
                    f"the probe chat {difference['chat']!r} has token {difference['server_id']} at position "
                    f"{difference['position']}, "
                    f"but the trainer has {difference['trainer_id']}"
                )
            remedy = (
                "Serve the base with the tokenizer and chat template that it was tuned with; do not set others on "
                "the replica."
            )
            return Code.ADAPTER_TEMPLATE_MISMATCH, reason, remedy
        case "stop":
            tokens = ", ".join(f"{token['token']} ({token['id']})" for token in report["stop"]["missed"])
            reason = f"its answers continue after {tokens}, but training ends a turn there"
            remedy = (
                "Start the replica with this release's `python -m serving`, which makes it stop at every end token."
            )
            return Code.ADAPTER_STOP_MISMATCH, reason, remedy
        case "tools":
            calls = ", ".join(f"{call['name']}({call['arguments']})" for call in report["tools"]["calls"])
            reason = f"it reads {calls or 'no tool call'} from an answer that calls a tool as in training"
            remedy = (
                "Start the replica without MENS_SERVING_TOOL_PARSER, or with the parser for this base's tool-call "
                "format."
            )
            return Code.TOOL_CALLS_BROKEN, reason, remedy
        case "effect":
            effect, noise = report["effect_rms_nats"], report["noise_rms_nats"]
            reason = f"it has no effect: it moves the probes by {effect:.2e} nats (noise {noise:.2e})"
            remedy = (
                "Train longer or with a higher learning rate; if the loss fell, the served base differs from the "
                "trained one."
            )
            return Code.ADAPTER_NO_EFFECT, reason, remedy
        case "engine_error":
            error, limit = parity["engine_error_rms_nats"], parity["engine_error_limit_nats"]
            dtype = report["base"]["dtype"]
            reason = (
                f"the engine error is {error:.2e} nats RMS against {parity['reference_dtype']}; the limit for "
                f"{dtype} is {limit:.0e}"
            )
            remedy = "vLLM does not compute this model as transformers does: check its version, dtype and settings."
        case "depth":
            limit, dtype = parity["engine_error_limit_nats"], report["base"]["dtype"]
            worst = max(_judged(report["depth"]), key=lambda entry: entry["engine_error_rms_nats"])
            where = f"from position {worst['from']} to {worst['to'] - 1}"
            reason = (
                f"the engine error is {worst['engine_error_rms_nats']:.2e} nats RMS {where}; the limit for {dtype} "
                f"is {limit:.0e}"
            )
            remedy = (
                "vLLM and transformers compute this model's long contexts differently: check vLLM's version and RoPE "
                "settings."
            )
        case _:
            shift, limit = parity["base_shift_rms_nats"], parity["base_shift_limit_nats"]
            distance = "an unknown distance" if shift is None else f"{shift:.2e} nats RMS"
            reason = f"the served base is {distance} from the NF4 base it was trained on; the limit is {limit:.2e}"
            twin = f"Serve the base's dequantised twin (`mens base dequantize {report['base']['name']}` makes it)"
            remedy = f"{twin}, or raise MENS_BASE_SHIFT_LIMIT on the worker."
    return Code.ADAPTER_PARITY_FAILED, reason, remedy


def differences(scores: Scores, other: Scores) -> list[float]:
    """Return ``other - scores``, position by position, over all probes."""
    pairs = zip(scores, other, strict=True)
    return [b - a for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]


def rms(values: Sequence[float]) -> float:
    """Return the root of the mean square; 0 for an empty sequence."""
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0


def largest(values: Iterable[float]) -> float:
    """Return the largest magnitude; 0 for an empty sequence."""
    return max(map(abs, values), default=0.0)
