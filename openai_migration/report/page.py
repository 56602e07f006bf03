"""The facts as one self-contained HTML page: no script, no font, no image, no network. All text in it is escaped."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from openai_migration.archive.shutdown_dates import describe_days
from openai_migration.receipts import LARGE_MARGIN
from openai_migration.report.facts import Facts, ModelFacts
from shared.statistics.paired import Status

NOT_OFFERED = (
    ("Moderation", "OpenAI screened training data and finished models. Mens does not; you can run a guard model in front of your program."),
    ("Batches", "Mens has no batch API; a loop of requests does the same, immediately but without a discount."),
    ("Images and audio", "Bases here read and write only text. Rows with images were dropped, not trained on without their images."),
    ("Assistants, vector stores, stored responses, realtime", "Mens offers none of these."),
    ("The same answers", "Another base has different knowledge, refusals and tone; token counts differ by tens of per cent."),
)  # fmt: skip
AZURE_SOURCE = "As published by Microsoft, read in November 2026"
AZURE = (
    ("fine-tunes of gpt-4o and gpt-4o-mini", "can be deployed until 1 October 2027"),
    ("fine-tunes of the gpt-4.1 family", "can be deployed until 14 October 2027"),
    ("fine-tunes of o4-mini", "can be deployed until 16 October 2027"),
    ("training, for existing customers", "at least until April 2027"),
)
STEPS = {
    "import": "your own files were imported instead of export and record",
    "inventory": "tuned models were listed",
    "export": "jobs, files, evals and chats were saved",
    "record": "answers of the tuned models were recorded",
    "convert": "rows were converted",
    "train": "successors were trained",
    "gate": "successors were compared with the recorded answers",
    "switch": "names were switched",
}
REPLACED_BY_IMPORT = ("inventory", "export", "record")
"""Steps that an archive created from local files does not need."""


def render_page(facts: Facts) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("openai_migration.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "days": describe_days,
        "proof": _proof,
        "rows_kept": _rows_kept,
        "next_step": _next_step,
        "loss": _loss,
    }
    return environment.get_template("report.html").render(
        facts=facts,
        not_offered=NOT_OFFERED,
        azure=AZURE,
        azure_source=AZURE_SOURCE,
        steps={step: STEPS[step] for step in shown_steps(facts)},
    )


def shown_steps(facts: Facts) -> list[str]:
    """Return the steps that were done, and those that remain."""
    needless = REPLACED_BY_IMPORT if facts.steps["import"] else ("import",)
    return [step for step in STEPS if facts.steps[step] or step not in needless]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _proof(model: ModelFacts) -> str:
    """Summarise in a few words what is proven about a model's successor."""
    if model.receipt is None:
        return "not compared" if model.recorded else "cannot be compared: nothing was recorded"
    if model.receipt.counts.nothing_measured:
        return "not measured: the installation refused every prompt"
    proven = {
        Status.PASSED: f"not worse than the tuned model by more than {model.receipt.largest_margin:g}",
        Status.FAILED: "worse than the tuned model, or not proven as good",
        Status.MISSING_EVIDENCE: "not decided: too few answers to compare",
    }
    return proven[model.receipt.verdict]


def _next_step(model: ModelFacts) -> str:
    """Return the step that a model needs next; "none" once its name is switched."""
    if model.switched:
        return "none"
    steps = {
        "record": not model.recorded and (model.days_left is None or model.days_left >= 0),
        "convert": all(file.lines is None for file in model.rows),
        "train": not any("@" in adapter for adapter in model.trained.values()),
        "gate": bool(model.recorded) and model.receipt is None,
        "switch": True,
    }
    return next(step for step, is_undone in steps.items() if is_undone)


def _rows_kept(model: ModelFacts) -> str:
    """Describe how many of the converted rows were kept."""
    counts = [(file.lines, file.kept + file.changed) for file in model.rows if file.lines is not None]
    if not counts:
        return "no rows converted"
    return f"{sum(kept for _, kept in counts)} of {sum(lines for lines, _ in counts)} rows kept"


def _loss(model: ModelFacts) -> str:
    """Describe the allowed margin, the largest measured loss in a blocking gate, and a warning if much was allowed."""
    if model.receipt is None:
        return ""
    losses = [
        (gate.old - gate.new, gate.name)
        for gate in model.receipt.gates
        if gate.block and gate.old is not None and gate.new is not None
    ]
    loss, name = max(losses, default=(0.0, ""))
    measured = f"largest measured loss {max(loss, 0.0):.3f} ({name})" if losses else "no loss was measured"
    by_pattern = "".join(f", of {pattern} {margin:g}" for pattern, margin in model.receipt.margins.items())
    margin = f"margin {model.receipt.margin:g}{by_pattern}; {measured}"
    is_large = model.receipt.largest_margin > LARGE_MARGIN
    return f"{margin}. Warning: a margin this large proves little" if is_large else margin
