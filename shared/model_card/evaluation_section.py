"""The card's section on the self-evaluation: a table of base and adapter, and their sample answers in pairs."""

from __future__ import annotations

from collections.abc import Iterator

from shared.counted_nouns import counted
from shared.model_card.markdown import inline, quotation, table
from shared.model_card.self_evaluation import PairedMeasure, RowSource, SampleAnswer, SelfEvaluation

SOURCES = {
    RowSource.VALIDATION_FILE: "rows of the validation file",
    RowSource.HELD_OUT: "rows that were held out of the training file",
    RowSource.TRAINING: "**rows that were trained on**, because no others can be measured; other rows may do worse",
}

INTERVALS = (
    "Base and tuned are means over tokens. The difference and its interval are means over rows, in which short and "
    "long rows have the same weight. Each end of an interval holds with 95 % (BCa bootstrap over rows). The "
    "interval of the accuracy includes two more rows, one wholly better and one wholly worse, so that a few equal rows "
    "do not give an interval of zero width."
)


def evaluation_section(evaluation: SelfEvaluation) -> str:
    """Write the section in Markdown; equal input gives equal output. The served model's measures come first."""
    blocks = ["\n## Against its base\n", _measures(evaluation)]
    blocks += [f"\n{inline(note)}\n" for note in evaluation.notes]
    blocks += [f"\n> **Warning.** {inline(warning)}\n" for warning in evaluation.warnings]
    if evaluation.sample_answers:
        blocks.append(
            "\n### Sample answers\n\nGreedy answers of the base and of the adapter, not selected for quality."
            f" {evaluation.exact_answers} of {len(evaluation.sample_answers)} equal their reference.\n"
        )
        blocks += ["".join(_sample(number, sample)) for number, sample in enumerate(evaluation.sample_answers, start=1)]
    if evaluation.general_answers:
        blocks.append(_general(evaluation))
    return "".join(blocks)


def _measures(evaluation: SelfEvaluation) -> str:
    served = evaluation.served
    trained = f", on the training's own weights ({evaluation.precision})" if evaluation.precision else ""
    sources = [(evaluation.loss, evaluation.token_accuracy, trained if served else "")]
    if served:
        sources.insert(0, (served.loss, served.token_accuracy, f", served ({served.weights} weights, {served.dtype})"))
    rows = [
        _row(f"{name}{where}", measure, factor, unit)
        for loss, accuracy, where in sources
        for name, measure, factor, unit in (
            ("loss (nats per token)", loss, 1.0, ".4f"),
            ("token accuracy (%)", accuracy, 100.0, ".1f"),
        )
        if measure
    ]
    if not rows:
        return "\nNothing was measured.\n"
    source = f"{evaluation.rows} of {evaluation.rows_available:,} {SOURCES[evaluation.source]}"
    if evaluation.held_out_copies:
        source += f", **{evaluation.held_out_copies} of which are trained on too**: new rows may do worse"
    head = ("measure", "base", "tuned", "difference a row", "interval")
    fewer = ""
    if served and served.rows < evaluation.rows:
        fewer = f" The served model was measured on the first {served.rows} of these rows."
    if evaluation.precision and not served:
        fewer = " It was not measured on served weights."
    sentence = str(evaluation.preferred or "")
    preferred = f"\n{sentence[:1].upper()}{sentence[1:]}.\n" if sentence else ""
    return (
        f"\nMeasured on {source}; {counted(evaluation.tokens, 'supervised token')}, the same for both.{fewer}\n\n{table(rows, head)}\n"
        f"{INTERVALS}\n{preferred}"
    )


def _general(evaluation: SelfEvaluation) -> str:
    """Write a table of the general questions."""
    answered = evaluation.known_answers
    kept = sum(answer.kept is True for answer in answered)
    words = {True: "yes", False: "no", None: "the base does not know it"}
    rows = [
        (answer_pair.question, answer_pair.base, answer_pair.tuned, words[answer_pair.kept])
        for answer_pair in evaluation.general_answers
    ]
    return (
        f"\n### General questions\n\nFixed questions that have nothing to do with the data. Kept: {kept} of the {len(answered)} that the base"
        f" answers.\n\n{table(rows, ('question', 'base', 'tuned', 'kept'))}"
    )


def _row(name: str, measure: PairedMeasure, factor: float, unit: str) -> tuple[str, ...]:
    numbers = [format(factor * value, unit) for value in (measure.base, measure.tuned)]
    difference = format(factor * measure.row_difference, f"+{unit}")
    ends = " to ".join(format(factor * end, f"+{unit}") for end in measure.interval or ())
    return (name, *numbers, difference, ends or "too few rows")


def _sample(number: int, sample: SampleAnswer) -> Iterator[str]:
    yield f"\n#### Sample {number} (line {sample.line})\n"
    texts = (
        *([("system", sample.system, True)] if sample.system else []),
        (f"{sample.role}, turn {sample.turns}", sample.prompt, True),
        ("reference", sample.reference, True),
        ("base", sample.base, sample.base_ended),
        ("tuned", sample.tuned, sample.tuned_ended),
    )
    for name, text, ended in texts:
        cut = "" if ended else " (cut at the limit of tokens)"
        quoted = quotation(text) if text.strip() else "nothing\n"
        yield f"\n{inline(name)}{cut}:\n\n{quoted}"
