"""Lines that describe a job: its plan, its expected cost, its place in the queue, its outcome."""

from __future__ import annotations

from typing import Any

from shared.artifacts.merge_fidelity import shift_warning
from shared.contract.choices import MethodType
from shared.contract.sections import DEFAULT_BETA
from shared.counted_nouns import counted
from shared.preflight.types import Estimate, PlannedDevice, TrainingTime


def describe_plan(job: dict[str, Any]) -> str:
    """Describe method, rows, epochs, steps, learning rate and parent of a fine-tune job, in one line."""
    exec_, plan = job["contract"]["exec"], job["plan"]
    batch = exec_["batch_size"] * exec_["grad_accum"]
    rows, held_out = plan["train"]["rows"], plan["validation_rows"]
    held = f" ({held_out} of {rows} are held out for validation)" if held_out else ""
    method, noun = _method(job["contract"])
    parent = job["contract"].get("adapter", {}).get("continue_from")
    return (
        f"{method}{counted(rows - held_out, noun)}{held}, {counted(exec_['epochs'], 'epoch')}, "
        f"{counted(plan['optimizer_steps'], 'step')} of {counted(batch, noun)}, "
        f"learning rate {exec_['learning_rate']:g}" + (f", continues {_short(parent)}" if parent else "")
    )


def _method(contract: dict[str, Any]) -> tuple[str, str]:
    """Return how a job on preferences is trained, as the start of a sentence, and what one of its rows is."""
    kind = contract.get("method", {}).get("type", MethodType.SUPERVISED)
    if kind == MethodType.SUPERVISED:
        return "", "row"
    preference = contract["preference"]
    beta = DEFAULT_BETA.get(preference["loss"]) if preference.get("beta") is None else preference["beta"]
    if kind == MethodType.DPO:
        return f"dpo ({preference['loss']}, beta {beta:g}): ", "pair"
    return f"{kind} (beta {beta:g}): ", "rated answer"


def _short(adapter: str) -> str:
    """Return an adapter's name with the part of its digest that commands accept."""
    name, _, digest = adapter.partition("@")
    return f"{name}@{digest[:12]}" if digest else name


def describe_expectation(preflight: dict[str, Any]) -> str:
    """Describe device, memory and time that a job's preflight expects, in one line; empty for a job of an earlier
    release.
    """
    if not (device := preflight.get("device")):
        return ""
    needs = preflight["estimate"]
    # Not validated: a later release may report more.
    memory = Estimate.model_construct(**needs).describe_memory()
    place, time = PlannedDevice.model_construct(**device), TrainingTime.model_construct(**needs["time"])
    return f"device: {place.describe()}; memory: {memory}; time: {time.describe()}"


def describe_place(place: dict[str, Any] | None) -> list[str]:
    """Return a line with a queued job's place, the reason, and its expected start; none for other jobs."""
    if place is None:
        return []
    start, error = place["estimated_start"], place["estimate_error"]
    when = f", starts about {start[:16].replace('T', ' ')} UTC" if start else ""
    if start and error:
        when += f" (half of these estimates were off by less than {error['p50_seconds']:.0f} s)"
    return [f"queue    {place['position']}{when}. {place['explanation']}"]


def describe_outcome(job: dict[str, Any]) -> str:
    """Describe the error, the adapter or the merged model that a job ended with."""
    if job["error"]:
        return f"{job['state']}: {job['error']['code']}: {job['error']['message']} {job['error']['remedy']}"
    if merged := job["result"].get("model_digest"):
        made = f"models/{merged} in the storage folder; `mens up --base {merged[:12]}` serves it as a base"
        return f"{job['state']}: {made}{_fidelity(job['result'].get('fidelity'))}"
    return f"{job['state']}  {job['result'].get('adapter_id') or ''}".rstrip()


def _fidelity(measured: dict[str, Any] | None) -> str:
    """Describe the measured fidelity of a merged model in a second line; empty for a model that an earlier release
    merged.
    """
    if measured is None:
        return ""
    merge, training, effect = (measured[name] for name in ("adapter_divergence", "training_divergence", "effect"))
    seen = f"{training['mean_kl_nats']:.1e} from what training saw; " if training else ""
    warning = shift_warning(training and training["mean_kl_nats"], effect["mean_kl_nats"])
    return (
        f"\nfidelity over {counted(measured['positions'], 'position')}, mean KL in nats: {merge['mean_kl_nats']:.1e} "
        "from base + adapter"
        f" (limit {measured['limit_nats']:.0e}, largest logit difference {merge['max_logit_difference']:.1e}); {seen}"
        f"the adapter's effect is {effect['mean_kl_nats']:.1e}" + (f"\nwarning: {warning}" if warning else "")
    )
