"""Compares a tuned model's recorded answers with its successor's: one gate for each comparable measure. Start reading
here.

The user's own graders come first, then labels, then similarity. A prompt that the installation refuses scores 0 in every gate
that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import now
from openai_migration.gate.answers import Candidate, NewAnswer, answers_file, body_for, read_answers
from openai_migration.gate.comparisons import OF_QUALITY, SAME_CALLS, SIMILARITY, Margins, compared, rate, with_unscored
from openai_migration.gate.imported_graders import (
    ImportedGrader,
    check_agreement,
    import_graders,
    open_sandbox,
    questions_of,
    score,
    stored_questions,
)
from openai_migration.gate.judges import Body, Judges, Unscored, judgements_file
from openai_migration.gate.measures import ALIKE, PAIRED, SHOWN_ONLY, matches_label, resemblance, same_calls
from openai_migration.gate.recorded import GateAnswer, RecordedPrompt, answer_of, labels, recorded_prompts
from openai_migration.receipts import Counts, GraderCheck, MigrationGate, MigrationReceipt, Noise
from openai_migration.record import golden_file
from shared.counted_nouns import counted
from shared.errors import ArtifactInvalid, Code, MensError
from shared.hashing import digest_file, digest_json
from shared.sandbox.levels import Choice
from shared.statistics.paired import CONFIDENCE, Status

DEFAULT_MARGINS = Margins()
MOST_UNSCORED = 0.05
"""Largest share of a grader's prompts that may lack a score for its gate to pass."""
LIBRARIES = ("mens", "rapidfuzz", "nltk", "jsonschema-rs", "regex")
MORE_EVIDENCE = (
    "nothing shows whether answers are right: the archive has no labels and no grader that agrees with OpenAI's "
    "scores (or the tuned model itself hardly passes them), and no repeated answers (`record --samples 4`) to "
    "compare similarity with"
)


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """A prompt with both answers; ``new`` is None if the installation refused the prompt."""

    prompt: RecordedPrompt
    new: GateAnswer | None


def make_receipt(
    contents: ArchiveContents,
    project: str,
    model: str,
    candidate: Candidate,
    installation: str,
    margins: Margins = DEFAULT_MARGINS,
    sandbox: Choice = "auto",
    judges: Judges | None = None,
) -> MigrationReceipt:
    """Compare the recorded answers and make the receipt.

    Args:
        margins: allowed losses of mean scores.
        sandbox: the sandbox for the user's code graders.
        judges: the models that judge, with their answers.

    Raises:
        ArtifactInvalid: the archive cannot be read, or prompts have no answer yet.
    """
    folder = contents.folder
    prompts = recorded_prompts(folder, project, model)
    new_answers = _answers(folder, model, prompts, candidate)
    pairs = _pairs(prompts, new_answers)
    counts = _counts(new_answers.values())
    checks: list[GraderCheck] = []
    gates: list[MigrationGate] = []
    with open_sandbox(contents, project, sandbox) as opened:
        for imported in import_graders(contents, project, opened, judges):
            check = check_agreement(imported)
            checks.append(check)
            gates += [] if counts.nothing_measured else _grader_gate(imported, check, pairs, margins)
    if counts.nothing_measured:
        verdict, reason = Status.MISSING_EVIDENCE, _nothing_measured(counts)
    else:
        gates += _label_gates(labels(contents, project, model), pairs, margins)
        gates += [_similarity_gate(pairs, margins), *_call_gates(pairs, margins), *_form_gates(pairs, margins)]
        gates = [margins.shown(gate) for gate in gates]
        verdict, reason = _verdict(gates)
    inputs = [golden_file(project, model), answers_file(model), judgements_file(model)]
    return MigrationReceipt(
        foreign_model=model,
        project=project,
        mens_model=candidate.name,
        adapters=sorted({answer.adapter for answer in new_answers.values() if answer.adapter}),
        installation=installation,
        verdict=verdict,
        reason=reason,
        margin=margins.margin,
        margins=dict(margins.by_gate),
        min_prompts=margins.min_prompts,
        confidence=CONFIDENCE,
        counts=counts,
        gates=gates,
        graders=checks,
        noise=_noise(prompts),
        inputs={path: digest_file(folder / path) for path in inputs if (folder / path).is_file()},
        versions={name: version(name) for name in LIBRARIES},
        made_at=now(),
        judges=dict(judges.served) if judges else {},
    )


def questions_to_judges(
    contents: ArchiveContents,
    project: str,
    model: str,
    candidate: Candidate | None,
    judges: Judges,
    sandbox: Choice = "auto",
) -> list[Body]:
    """Return the requests to the judge models: about recorded and new answers first, then about OpenAI's stored ones.

    Args:
        candidate: the new model; None before it has answered: a new answer is then assumed to be as long as the
            recorded one.

    Raises:
        ArtifactInvalid: as :func:`make_receipt`.
    """
    prompts = recorded_prompts(contents.folder, project, model)
    pairs = [ComparedPair(prompt, prompt.answer) for prompt in prompts]
    if candidate:
        pairs = _pairs(prompts, _answers(contents.folder, model, prompts, candidate))
    compared: list[Body] = []
    stored: list[Body] = []
    with open_sandbox(contents, project, sandbox) as opened:
        for imported in import_graders(contents, project, opened, judges):
            for pair in pairs:
                if item := imported.items.get(pair.prompt.id):
                    for answer in filter(None, (pair.prompt.answer, pair.new)):
                        compared += questions_of(imported, item, answer)
            stored += stored_questions(imported)
    return compared + stored


def _pairs(prompts: Iterable[RecordedPrompt], new_answers: Mapping[str, NewAnswer]) -> list[ComparedPair]:
    return [
        ComparedPair(prompt, None if new_answers[prompt.id].code else answer_of(new_answers[prompt.id].response))
        for prompt in prompts
    ]


def _answers(folder: Path, model: str, prompts: Iterable[RecordedPrompt], candidate: Candidate) -> dict[str, NewAnswer]:
    stored = read_answers(folder, model)
    by_prompt = {prompt.id: stored.get(digest_json(body_for(prompt, candidate))) for prompt in prompts}
    if missing := sum(answer is None for answer in by_prompt.values()):
        message = f"{counted(missing, 'prompt')} of {model} {'has' if missing == 1 else 'have'} no answer of {candidate.served} yet."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Run `gate` again, with the installation.")
    return {prompt: answer for prompt, answer in by_prompt.items() if answer}


def _grader_gate(
    imported: ImportedGrader, check: GraderCheck, pairs: list[ComparedPair], margins: Margins
) -> list[MigrationGate]:
    """Return the gate of one of the user's graders; none if no recorded prompt is an item of its eval."""
    mine = [pair for pair in pairs if pair.prompt.id in imported.items]
    if not mine or imported.grader is None:
        return []
    why = "" if check.may_block else f"shown only: {check.agreeing} of {check.compared} stored scores agree"
    old, new, unscored = [], [], 0
    for pair in mine:
        item = imported.items[pair.prompt.id]
        try:
            scores = score(imported, item, pair.prompt.answer), score(imported, item, pair.new) if pair.new else 0.0
        except Unscored:
            unscored += 1
            continue
        except MensError as error:
            return [compared(imported.name, [], [], margins, block=check.may_block, reason=str(error))]
        old.append(scores[0])
        new.append(scores[1])
    gate = compared(imported.name, old, new, margins, block=check.may_block, reason=why)
    return [with_unscored(gate, unscored, MOST_UNSCORED) if unscored else gate]


def _label_gates(
    labels_by_prompt: Mapping[str, GateAnswer], pairs: list[ComparedPair], margins: Margins
) -> list[MigrationGate]:
    old: dict[str, list[float]] = {}
    new: dict[str, list[float]] = {}
    for pair in pairs:
        if label := labels_by_prompt.get(pair.prompt.id):
            for name, value in matches_label(pair.prompt.answer, label).items():
                old.setdefault(name, []).append(value)
                new.setdefault(name, []).append(matches_label(pair.new, label)[name] if pair.new else 0.0)
    return [compared(name, old[name], new[name], margins) for name in sorted(old)]


def _similarity_gate(pairs: list[ComparedPair], margins: Margins) -> MigrationGate:
    """Return the gate on the similarity of the new answers to the recorded ones, which is compared with the similarity
    of the old model's own repeated answers.
    """
    again = [pair for pair in pairs if pair.prompt.samples]
    if again:
        old = [_self_similarity(pair.prompt) for pair in again]
        return compared(SIMILARITY, old, [_similarity(pair) for pair in again], margins)
    similarities = [_similarity(pair) for pair in pairs]
    mean = sum(similarities) / len(similarities) if similarities else None
    reason = "shown only: without repeated answers of the old model, it is unknown how similar answers need to be"
    return MigrationGate(
        SIMILARITY,
        Status.MISSING_EVIDENCE,
        False,
        None,
        mean,
        None,
        None,
        -margins.of(SIMILARITY),
        len(similarities),
        reason=reason,
    )


def _similarity(pair: ComparedPair) -> float:
    return resemblance(pair.prompt.answer, pair.new) if pair.new else 0.0


def _self_similarity(prompt: RecordedPrompt) -> float:
    return sum(resemblance(prompt.answer, sample) for sample in prompt.samples) / len(prompt.samples)


def _call_gates(pairs: list[ComparedPair], margins: Margins) -> list[MigrationGate]:
    """Compare how often the new model makes the recorded calls (functions and arguments) with how often the old model
    repeats its own.
    """
    mine = [pair for pair in pairs if pair.prompt.answer.tool_calls]
    if not mine:
        return []
    old = [_own_same_calls(pair.prompt) for pair in mine]
    new = [same_calls(pair.prompt.answer, pair.new) if pair.new else 0.0 for pair in mine]
    return [compared(SAME_CALLS, old, new, margins)]


def _own_same_calls(prompt: RecordedPrompt) -> float:
    if not prompt.samples:
        return 1.0
    return sum(same_calls(prompt.answer, sample) for sample in prompt.samples) / len(prompt.samples)


def _form_gates(pairs: list[ComparedPair], margins: Margins) -> list[MigrationGate]:
    gates = []
    for name, measure in PAIRED.items():
        concerned = [(pair, old) for pair in pairs if (old := measure(pair.prompt, pair.prompt.answer)) is not None]
        if concerned:
            new = [(measure(pair.prompt, pair.new) or 0.0) if pair.new else 0.0 for pair, _ in concerned]
            gates.append(compared(name, [old for _, old in concerned], new, margins))
    for name, (measure, least) in ALIKE.items():
        of_old = [pair for pair in pairs if measure(pair.prompt, pair.prompt.answer) is not None]
        if of_old:
            alike = [(measure(pair.prompt, pair.new) or 0.0) if pair.new else 0.0 for pair in of_old]
            gates.append(rate(name, int(sum(alike)), len(alike), least, margins, block=name not in SHOWN_ONLY))
    return gates


def _verdict(gates: list[MigrationGate]) -> tuple[Status, str]:
    """Return the overall verdict of all gates. If the old model's scores are close to zero, even nonsense loses little,
    so the gates prove nothing.
    """
    blocking = [gate for gate in gates if gate.block]
    for status in (Status.FAILED, Status.MISSING_EVIDENCE):
        if names := [gate.name for gate in blocking if gate.status is status]:
            return status, f"{', '.join(names)}: {'failed' if status is Status.FAILED else 'too few prompts to tell'}"
    of_quality = [gate for gate in blocking if gate.name.startswith(OF_QUALITY)]
    if not any(gate.decisive for gate in of_quality):
        return Status.MISSING_EVIDENCE, MORE_EVIDENCE
    return Status.PASSED, ""


def _counts(answers: Iterable[NewAnswer]) -> Counts:
    codes: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    answered = unbounded = 0
    for answer in answers:
        if answer.code:
            codes[answer.code] += 1
            reasons.setdefault(answer.code, answer.reason)
        else:
            answered += 1
            unbounded += answer.unbounded
    return Counts(answered + codes.total(), answered, dict(codes), reasons, unbounded)


def _nothing_measured(counts: Counts) -> str:
    why = "; ".join(f"{count} {code}: {counts.reasons[code]}" for code, count in counts.refused.items())
    return f"nothing was measured: the installation refused every prompt: {why}"


def _noise(prompts: Iterable[RecordedPrompt]) -> Noise:
    similarities = [_self_similarity(prompt) for prompt in prompts if prompt.samples]
    return Noise(len(similarities), sum(similarities) / len(similarities) if similarities else None)
