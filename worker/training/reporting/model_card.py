"""``MODEL_CARD.md``: describes an adapter: its origin, training and results, with its curves as a picture.

The front matter follows the Hugging Face hub. Every figure was measured; it contains no training text except the sample
answers, which an operator can leave out; all strings that people or models wrote are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shared.base_models.tensors import expected_tensors, parameter_count
from shared.contract.choices import MethodType, ThoughtsRule
from shared.contract.values import describe_arguments
from shared.hashing import digest_json
from shared.model_card.common_sections import answers_of_models, attribution, front_matter, heading, limits
from shared.model_card.evaluation_section import evaluation_section
from shared.model_card.markdown import inline, started_from, table
from shared.model_card.recipe import used_values
from worker.training.reporting.facts import FinishedRun
from worker.training.reporting.svg_charts import Panel, Series, smooth, svg
from worker.training.reporting.tracker_clients import Value
from worker.training.reporting.trackers import flatten
from worker.training.reproducibility import Guarantee, explain

CARD_NAME = "MODEL_CARD.md"
CURVES_NAME = "loss.svg"
BLUE, ORANGE, GREY, GREEN = "#0072B2", "#D55E00", "#BBBBBB", "#009E73"
CURVE_SMOOTHING = 0.1
ACCURACY = "valid_mean_token_accuracy"


def write_model_card(run_dir: Path, facts: FinishedRun, packages: Mapping[str, str]) -> None:
    """Write the card and its picture into the run folder."""
    (run_dir / CURVES_NAME).write_text(draw_curves(facts), encoding="utf-8")
    (run_dir / CARD_NAME).write_text(model_card(facts, packages), encoding="utf-8")


def model_card(facts: FinishedRun, packages: Mapping[str, str]) -> str:
    """Return the card's content."""
    provenance = facts.plan.contract.provenance
    sections = [
        front_matter(
            provenance.upstream_model_id or facts.plan.base.name,
            provenance.license_class,
            facts.manifest.adapter_method.value,
        ),
        heading(facts.manifest),
        _base_model(facts),
        *([started_from([parent])] if (parent := facts.manifest.parent) else []),
        _data(facts),
        _recipe(facts),
        f"\n## Curves\n\n![Training loss, validation loss and learning rate over the steps]({CURVES_NAME})\n",
        _evaluation(facts),
        *([evaluation_section(facts.evaluation)] if facts.evaluation else []),
        _reproduce(facts, packages),
        _limits(facts),
    ]
    return "\n".join(sections)


def draw_curves(facts: FinishedRun) -> str:
    """Draw loss and learning rate over the steps, as SVG."""
    losses = facts.series("train_loss")
    loss = [
        Series("training", losses, GREY, width=1),
        Series("training, smoothed", smooth(losses, CURVE_SMOOTHING), BLUE),
        Series("validation", facts.series("valid_loss"), ORANGE, dots=True),
    ]
    rates = [(step, facts.rate_at(step)) for step, _ in losses]
    has_preferences = facts.plan.contract.has_preferences
    panels = [Panel("Preference loss" if has_preferences else "Loss (nats per token)", loss)]
    panels += _preference_panels(facts) if has_preferences else []
    panels.append(Panel("Learning rate", [Series("learning rate", rates, GREEN)]))
    return svg(f"Training of {facts.manifest.name}", panels)


_RIGHT = {
    MethodType.DPO: "Pairs with a positive margin",
    MethodType.KTO: "Answers on the right side of the reference point",
}
"""Names of the rows over which the accuracy of a preference run is computed."""


def _preference_panels(facts: FinishedRun) -> list[Panel]:
    """Return the curves of a run on preferences: how far the answers have moved apart, and how often in the right
    direction.
    """
    panels = []
    for title, name in (
        ("Reward margin", "reward_margin"),
        (_RIGHT[facts.plan.contract.method.type], "reward_accuracy"),
    ):
        values = facts.series(name)
        shown = [Series("training", values, GREY, width=1), Series("smoothed", smooth(values, CURVE_SMOOTHING), BLUE)]
        panels.append(Panel(title, shown))
    return panels


def share(part: float, whole: float) -> str:
    """Format a share, e.g. ``12.5 %``; ``none`` for an empty total."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _base_model(facts: FinishedRun) -> str:
    provenance, config = facts.plan.contract.provenance, facts.config
    rows: list[tuple[str, object]] = [
        ("name", facts.plan.base.name),
        ("family", provenance.base_family or config.family.value),
        ("upstream model", provenance.upstream_model_id or "not stated"),
        ("licence", provenance.license_class or "not stated"),
        ("parameters", f"{parameter_count(expected_tensors(config)):,}"),
        ("layers, width, vocabulary", f"{config.layers}, {config.hidden}, {config.vocab:,}"),
        ("SHA-256 of its files' digests", digest_json(facts.plan.base.digests)),
    ]
    text = "\n## Base model\n\n" + table(rows)
    if provenance.attribution_required:
        text += attribution(provenance.upstream_model_id or facts.plan.base.name, provenance.license_class)
    return text


def _data(facts: FinishedRun) -> str:
    report, plan = facts.training, facts.plan
    skipped = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in facts.skips.items() if count)
    filters = flatten(plan.contract.data.model_dump(mode="json", include={"min_rating", "context_filter", "mode"}))
    rows: list[tuple[str, object]] = [
        ("training file", plan.train.file_id),
        ("its SHA-256", plan.train.sha256),
        ("rows trained on", facts.training_rows),
        ("rows validated on", f"{facts.validation_rows} ({_validation_source(facts)})"),
        ("tokens of the file", f"{report.tokens:,}"),
        ("of these supervised", f"{report.supervised_tokens:,} ({share(report.supervised_tokens, report.tokens)})"),
        ("rows cut at the beginning", f"{report.truncated_rows} ({report.truncated_tokens:,} tokens)"),
        ("rows left out", skipped or "none"),
        ("filters", ", ".join(f"{key}: {value}" for key, value in filters.items())),
    ]
    if arguments := plan.contract.data.template_arguments:
        rows.append(("template arguments", f"{describe_arguments(arguments)}; requests for answers use them"))
    if plan.contract.data.thoughts is not ThoughtsRule.LEARN:
        rows.append(("thoughts of answers", plan.contract.data.thoughts.value))
    if plan.validation:
        rows.insert(2, ("validation file", f"{plan.validation.file_id}, SHA-256 {plan.validation.sha256}"))
    if plan.replay:
        share_of_replay = (
            f"{plan.replay.file_id}, SHA-256 {plan.replay.sha256}; {plan.contract.data.replay_ratio:g} a row"
        )
        rows.append(("replayed in each epoch", share_of_replay))
    return "\n## Data\n\n" + table(rows) + answers_of_models(plan.contract.provenance.answer_models)


def _validation_source(facts: FinishedRun) -> str:
    if facts.plan.validation:
        return "a file of its own"
    return "held out of the training file" if facts.validation_rows else "no validation"


def _recipe(facts: FinishedRun) -> str:
    shown = {"adapter", "quant", "exec", "trajectory", "optimizer", "curriculum"}
    shown |= {"method", "preference"} if facts.plan.contract.has_preferences else set()
    values: dict[str, Value] = flatten(
        used_values(
            facts.plan.contract.model_dump(mode="json", include=shown),
            steps=facts.progress.step,
            planned=facts.planned_steps,
        )
    )
    rows: list[tuple[str, object]] = [*values.items()]
    rows += [(f"engine.{key}", value) for key, value in flatten(facts.engine).items()]
    rows += [("optimizer steps", facts.progress.step), ("tokens", f"{facts.progress.trained_tokens:,}")]
    notes = "".join(f"\n- {inline(note)}" for note in facts.plan.notes)
    return "\n## Recipe\n\n" + table(rows) + (f"\nNotes of the plan:\n{notes}\n" if notes else "")


def _evaluation(facts: FinishedRun) -> str:
    losses, accuracies = facts.series("valid_loss"), dict(facts.series(ACCURACY))
    if not losses:
        return "\n## Evaluation\n\nThe job had no validation data; nothing was evaluated.\n"
    best = min(losses, key=lambda point: point[1])
    rows = [
        (label, step, f"{loss:.4f}", share(accuracies.get(step, 0.0), 1.0))
        for label, (step, loss) in (("first", losses[0]), ("best", best), ("last", losses[-1]))
    ]
    head = ("validation", "step", "loss (nats per token)", "token accuracy")
    if facts.plan.contract.has_preferences:
        head = ("validation", "step", "preference loss", _RIGHT[facts.plan.contract.method.type].lower())
    return f"\n## Evaluation\n\n{table(rows, head)}\nThe adapter is the one of the last step.\n"


def _reproduce(facts: FinishedRun, packages: Mapping[str, str]) -> str:
    rows = [("plan", facts.plan.digest), ("contract", facts.plan.contract_digest), ("run", facts.run_id)]
    versions = [(name, version) for name, version in packages.items()]
    return (
        f"\n## Reproduce\n\n{table(rows)}\n```\npython -m worker.train plan.json out/\n```\n\n"
        f"Trained on {inline(facts.device_name or facts.device)}.\n\n{table(versions, ('package', 'version'))}\n"
        f"{_guarantee(facts)}\n"
    )


def _guarantee(facts: FinishedRun) -> str:
    """Describe this run's interruptions and how a second run would compare."""
    exact = facts.progress.guarantee is Guarantee.BIT_EXACT
    equal = (
        "Equal plans, packages and thread counts on such a machine give equal bytes."
        if exact
        else f"A second run of the plan may round differently: {inline('; '.join(map(explain, facts.progress.inexact_reasons)))}."
    )
    if not facts.progress.resumed_from:
        return f"The run was not interrupted. {equal}"
    steps = ", ".join(map(str, facts.progress.resumed_from))
    as_if = (
        "its bytes equal those of an uninterrupted run"
        if exact
        else "its state was restored completely, but its rounding may differ"
    )
    return f"The run was interrupted and resumed from its checkpoints at step {steps}: {as_if}. {equal}"


def _limits(facts: FinishedRun) -> str:
    points = [
        f"Rows were cut to {facts.plan.contract.exec.seq_len} tokens; longer contexts were not trained.",
        "The adapter works only with the base model named above, byte for byte.",
        "Token accuracy is measured on the next token, given the correct text before it.",
        *_limits_of_preferences(facts),
        "Free-form answers are at most shown as samples; neither they nor safety and bias were graded.",
        "The adapter inherits the base model's limits and the errors in the training data.",
    ]
    return limits(points)


def _limits_of_preferences(facts: FinishedRun) -> list[str]:
    if not facts.plan.contract.has_preferences:
        return []
    return [
        "A margin compares log-probabilities of given answers with the base's; free answers were not judged.",
        "The loss of the self-evaluation is that of the preferred answers alone, or of those rated good.",
    ]
