"""Gates on an adapter's training: they read the typed report of the run from its job's record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shared.gates.evidence import TrainingReport
from shared.gates.measures import against, missing
from shared.gates.policy import Gate, ModalMix, SupervisedRatio, Throughput, Truncation
from shared.gates.receipt import GateCheck

PROFILES = (("cpu", "cpu"), ("4080", "rtx_4080_super"), ("4090", "rtx_4090"))
"""The original's names of devices, by a part of a device's own name."""
SPOKEN = ("speech", "voice", "asr")
"""Words in a lane or category that mark a row as spoken, such as the original's lane ``vox_speech``."""
NOT_SAID = frozenset({"(none)", "(other)"})
"""Names under which the data report counts rows without a label or with a rare label."""


def training_check(gate: Gate, report: TrainingReport | None) -> GateCheck | None:
    """Check a gate on training; return None if the gate does not read the training."""
    match gate:
        case SupervisedRatio():
            # Without a token nothing is supervised; without a report nothing is known.
            share = 100.0 * report.supervised_tokens / max(1, report.tokens) if report else None
            return against("supervised tokens (%)", "at_least", share, gate.min_pct)
        case Truncation():
            cut = report.truncation_fraction if report else None
            return against("share of tokens cut off", "at_most", cut, gate.max_fraction)
        case ModalMix():
            return _modal_mix(gate, report)
        case Throughput():
            return _throughput(gate, report)
    return None


def report_of(
    preflight: Mapping[str, Any], job_id: str = "", result: Mapping[str, Any] | None = None
) -> TrainingReport | None:
    """Return the report on a run from its job's record: the counts of its preflight and the measurements in its result;
    None if its preflight has not counted rows.
    """
    supervision, measured = preflight.get("supervision"), result or {}
    if not supervision:
        return None
    return TrainingReport(
        job_id=job_id,
        device=str((measured.get("memory") or {}).get("device", "")),
        tokens=supervision["tokens"],
        supervised_tokens=supervision["supervised_tokens"],
        truncation_fraction=supervision["truncation_fraction"],
        tokens_per_second=measured.get("tokens_per_second"),
        voice_fraction=voice_fraction(preflight["data"]["training"]) if "data" in preflight else None,
    )


def voice_fraction(file: Mapping[str, Any]) -> float | None:
    """Return the share of a training file's rows that were spoken, by their lanes, else by their categories.

    Args:
        file: the file's part of the data report.

    Returns:
        None if not every row has a label, or if a filter trains on some of the rows only.
    """
    rows = file["rows"]
    if not rows or file["trainable_rows"] != rows:
        return None
    for labels in (file["lanes"], file["categories"]):
        if not NOT_SAID & labels.keys():
            return float(sum(count for label, count in labels.items() if is_spoken(label)) / rows)
    return None


def is_spoken(label: str) -> bool:
    """Return whether a lane or a category is one of speech."""
    words = "".join(char if char.isalnum() else " " for char in label.lower()).split()
    return not set(SPOKEN).isdisjoint(words)


def _modal_mix(gate: ModalMix, report: TrainingReport | None) -> GateCheck:
    measure = "share of spoken rows"
    if report is None or report.voice_fraction is None:
        reason = f"{measure}: not every training row has a lane or a category"
        return missing(measure, "at_most", gate.max_voice_fraction, reason)
    return against(measure, "at_most", report.voice_fraction, gate.max_voice_fraction)


def device_profile(device: str, profile_names: Collection[str]) -> str:
    """Return the name of a device in a policy.

    This is the longest known name contained in the device's own name, or else the original's name, or else its own name
    in lower snake case.
    """
    snake = "_".join("".join(char if char.isalnum() else " " for char in device.lower()).split())
    named = [name for name in sorted(profile_names, key=len, reverse=True) if name.lower() in snake]
    return next(iter(named + [profile for part, profile in PROFILES if part in snake]), snake)


def _throughput(gate: Throughput, report: TrainingReport | None) -> GateCheck:
    bounds, measure = gate.min_tokens_per_sec, "tokens per second"
    if report is None:
        return missing(measure, "at_least", min(bounds.values()), f"{measure}: it was not measured")
    profile = device_profile(report.device, bounds)
    bound = bounds.get(profile, bounds.get("cpu"))
    if bound is None:
        return missing(measure, "at_least", min(bounds.values()), f"the policy does not set a bound for {profile}")
    return against(f"{measure} ({profile})", "at_least", report.tokens_per_second, bound)
