"""Certificates: what was measured of an adapter on one replica, and whether that is good enough. Pure.

    effect    the adapter moves the replica's log-probabilities of the probe tokens, by more than the replica's own noise
    template  the replica turns the probe chats into the trainer's token ids, id by id
    parity    engine error: the replica against the trainer's own forward pass on the same weights; limited
              base shift: the replica against the NF4 model that was trained; reported, limited only if a limit is set

All numbers are nats, over the probe positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from shared.errors import Code, JobFailed
from worker.probe_chats import EncodedChats

NOISE_FACTOR = 3.0
ENGINE_ERROR_LIMITS = {"float32": 1e-4}
"""By the served dtype; RMS. Measured in fp32: 1.3e-6."""
LOW_PRECISION_LIMIT = 0.05
"""For every other dtype; RMS. Two engines that round at other places to 8 bits agree no better: measured 0.017."""

Scores = Sequence[Sequence[float]]
"""Log-probabilities of the probe positions, by probe."""


@dataclass(frozen=True, slots=True)
class ServedBase:
    """What a replica says of the base it serves.

    Attributes:
        name: what requests call it.
        digest: of its files.
        twin_of: name of the base that it is the dequantised twin of.
        dtype: in which the engine computes.
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
class Limits:
    """What a certificate must keep.

    Attributes:
        effect_floor: least effect.
        base_shift: largest RMS base shift; None: it is only reported.
    """

    effect_floor: float
    base_shift: float | None = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """Log-probabilities of the probe positions, by who computed them.

    Attributes:
        base, base_again: the replica's base, asked twice: what differs is noise.
        served: the replica's adapter.
        trained: the NF4 model at the end of training; None: not recorded.
        reference: transformers and peft on the weights that the replica serves; None: not asked for.
    """

    base: Scores
    base_again: Scores
    served: Scores
    trained: Scores | None
    reference: Scores | None


def template_report(encoded: EncodedChats, served: Sequence[Sequence[int] | None]) -> dict[str, Any]:
    """The template certificate.

    Args:
        encoded: the trainer's token ids.
        served: the replica's, chat by chat; None where it refused the chat.
    """
    pairs = zip(encoded.chats, served, strict=True)
    found = ((chat.name, first_difference(ours, theirs)) for (chat, ours), theirs in pairs)
    difference = next(({"chat": name, **where} for name, where in found if where), None)
    return {
        "chats": [chat.name for chat, _ in encoded.chats],
        "skipped": encoded.skipped,
        "tokens": sum(len(ids) for _, ids in encoded.chats),
        "equal": difference is None,
        "difference": difference,
    }


def first_difference(ours: Sequence[int], theirs: Sequence[int] | None) -> dict[str, Any] | None:
    """Where two lists of token ids part, with the ids there (None past an end); None when they are equal."""
    if theirs is None:
        return {"position": 0, "trainer_id": ours[0] if ours else None, "server_id": None, "refused": True}
    for position, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            return {"position": position, "trainer_id": one, "server_id": other}
    return None


def certificate(base: ServedBase, measured: Measurements, template: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What is stored with the adapter for one replica; ``failed`` names what did not pass."""
    effect = differences(measured.base, measured.served)
    report: dict[str, Any] = {
        "base": asdict(base),
        "probes": len(measured.served),
        "positions": len(effect),
        "effect_rms_nats": rms(effect),
        "effect_max_nats": largest(effect),
        "noise_rms_nats": rms(differences(measured.base, measured.base_again)),
        "effect_floor_nats": limits.effect_floor,
        "template": template,
        "parity": _parity(base, measured, limits),
    }
    failed = [name for name, holds in _verdicts(report).items() if not holds]
    return {**report, "failed": failed, "passed": not failed}


def _parity(base: ServedBase, measured: Measurements, limits: Limits) -> dict[str, Any]:
    engine_limit = None if measured.reference is None else base.engine_error_limit
    return {
        **_error_numbers("engine_error", measured.reference, measured.served, engine_limit),
        **_error_numbers("base_shift", measured.trained, measured.served, limits.base_shift),
    }


def _error_numbers(name: str, expected: Scores | None, served: Scores, limit: float | None) -> dict[str, Any]:
    error = None if expected is None else differences(expected, served)
    return {
        f"{name}_rms_nats": None if error is None else rms(error),
        f"{name}_max_nats": None if error is None else largest(error),
        f"{name}_limit_nats": limit,
    }


def _verdicts(report: dict[str, Any]) -> dict[str, bool]:
    """Certificate → whether it holds. A number that is not finite never does."""
    parity, template = report["parity"], report["template"]
    return {
        "template": bool(template["equal"] and template["chats"]),
        "effect": report["effect_rms_nats"] > max(report["effect_floor_nats"], NOISE_FACTOR * report["noise_rms_nats"]),
        "engine_error": _within(parity["engine_error_rms_nats"], parity["engine_error_limit_nats"]),
        "base_shift": _within(parity["base_shift_rms_nats"], parity["base_shift_limit_nats"]),
    }


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def refuse_failed(adapter_id: str, certificates: dict[str, dict[str, Any]]) -> None:
    """Raises:
    JobFailed: ``ADAPTER_TEMPLATE_MISMATCH``, ``ADAPTER_NO_EFFECT`` or ``ADAPTER_PARITY_FAILED``, with the numbers, and
        all certificates in the details.
    """
    for name, report in certificates.items():
        if report["passed"]:
            continue
        code, words, remedy = _EXPLAIN[report["failed"][0]](report)
        message = f"{adapter_id} on the serving {name}: {words}."
        raise JobFailed(code, message, remedy=remedy, details={"certificates": certificates})


def _explain_template(report: dict[str, Any]) -> tuple[Code, str, str]:
    found = report["template"]["difference"]
    words = "no probe chat could be compared"
    if found and found.get("refused"):
        words = f"the replica refuses the probe chat {found['chat']!r}, which the base's template takes"
    elif found:
        words = (
            f"the probe chat {found['chat']!r} has token {found['server_id']} at position {found['position']}, "
            f"where the trainer has {found['trainer_id']}"
        )
    remedy = "Serve the base with the tokenizer and chat template it was tuned with; set none on the replica."
    return Code.ADAPTER_TEMPLATE_MISMATCH, words, remedy


def _explain_effect(report: dict[str, Any]) -> tuple[Code, str, str]:
    effect, noise = report["effect_rms_nats"], report["noise_rms_nats"]
    words = f"it changes nothing: it moves the probes by {effect:.2e} nats (noise {noise:.2e})"
    remedy = "Train longer or with a higher learning rate; if the loss did fall, the served base is another one."
    return Code.ADAPTER_NO_EFFECT, words, remedy


def _explain_engine_error(report: dict[str, Any]) -> tuple[Code, str, str]:
    parity, dtype = report["parity"], report["base"]["dtype"]
    error, limit = parity["engine_error_rms_nats"], parity["engine_error_limit_nats"]
    words = f"the engine error is {error:.2e} nats RMS; the limit for {dtype} is {limit:.0e}"
    remedy = "The engine does not compute this model as transformers does: look at its version, dtype and settings."
    return Code.ADAPTER_PARITY_FAILED, words, remedy


def _explain_base_shift(report: dict[str, Any]) -> tuple[Code, str, str]:
    parity = report["parity"]
    shift, limit = parity["base_shift_rms_nats"], parity["base_shift_limit_nats"]
    distance = "an unknown distance" if shift is None else f"{shift:.2e} nats RMS"
    words = f"the served base is {distance} from the NF4 base it was trained on; the limit is {limit:.2e}"
    remedy = "Serve the base's dequantised twin (`mens base dequantize`), or raise MENS_BASE_SHIFT_LIMIT."
    return Code.ADAPTER_PARITY_FAILED, words, remedy


_EXPLAIN = {
    "template": _explain_template,
    "effect": _explain_effect,
    "engine_error": _explain_engine_error,
    "base_shift": _explain_base_shift,
}


def differences(one: Scores, other: Scores) -> list[float]:
    """``other - one``, position by position, over all probes."""
    pairs = zip(one, other, strict=True)
    return [b - a for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]


def rms(values: Sequence[float]) -> float:
    """Root of the mean square; 0 of nothing."""
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else 0.0


def largest(values: Iterable[float]) -> float:
    """Largest magnitude; 0 of nothing."""
    return max(map(abs, values), default=0.0)
