"""The user's own graders, from the exported evals; each is first compared with OpenAI's own scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.pages import Item
from openai_migration.archive.sections import url_path
from openai_migration.gate.judges import Body, Judges, Unscored, judge_questions
from openai_migration.gate.recorded import GateAnswer, calls_of
from openai_migration.prompts import sampled_request
from openai_migration.receipts import GraderCheck
from shared.errors import Code, InvalidRequest, MensError
from shared.graders.grading import check_runnable, grade, is_passed, make_sample
from shared.graders.types import GRADER, Grader
from shared.hashing import digest_json
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Choice
from shared.sandbox.probe import report_of_machine

LEAST_AGREEMENT = 0.99
SCORE_TOLERANCE = 0.01
SHOWN_DIFFERENCES = 5
OF_THE_ANSWER = frozenset({Code.GRADER_SAMPLE_INVALID, Code.GRADER_FAILED})
"""Error codes that give an answer the score 0, as at OpenAI: it is not JSON where JSON is read, or code raises."""
OF_THE_JUDGE = frozenset({Code.GRADER_MODEL_REFUSED, Code.GRADER_MODEL_ANSWER_INVALID})
"""Error codes for which the judge model is responsible; the answer then gets no score."""
NOT_SENT = ("id",)
"""Fields that OpenAI adds to a criterion."""


@dataclass(slots=True)
class ImportedGrader:
    """A criterion of an eval.

    Attributes:
        name: name of its gate: ``eval:EVAL/CRITERION``.
        result_names: its names in OpenAI's results.
        grader: None if it cannot be used here; ``refused`` gives the reason.
        items: items of the eval, by the id of the prompt that was made from them.
        outputs: OpenAI's stored answers to the eval's items, with their scores.
        sandbox: sandbox for code.
        judges: answers of the judge models.
    """

    name: str
    result_names: frozenset[str]
    grader: Grader | None
    refused: str
    items: dict[str, Item] = field(default_factory=dict)
    outputs: list[Item] = field(default_factory=list)
    sandbox: Sandbox | None = None
    judges: Judges | None = None


@contextmanager
def open_sandbox(contents: ArchiveContents, project: str, choice: Choice) -> Iterator[Sandbox | None]:
    """Open the sandbox for a project's code graders; yield None if it has none, or this machine cannot contain code."""
    evals = contents.items(project, "evals")
    criteria = [criterion for evaluation in evals for criterion in evaluation.get("testing_criteria") or []]
    if not any(criterion.get("type") == "python" for criterion in criteria):
        yield None
        return
    report = report_of_machine(choice)
    if report.level is None:
        yield None
        return
    with Sandbox.open(report) as sandbox:
        yield sandbox


def import_graders(
    contents: ArchiveContents, project: str, sandbox: Sandbox | None = None, judges: Judges | None = None
) -> Iterator[ImportedGrader]:
    """Yield the criteria of every eval of a project.

    Args:
        sandbox: runs code; without it code graders are refused.
        judges: the judge models; without them graders with a model are refused.
    """
    names: set[str] = set()
    for evaluation in contents.items(project, "evals"):
        outputs = list(_output_items(contents, project, str(evaluation["id"])))
        items = {prompt: item for output in outputs for prompt, item in _prompt_and_item(output)}
        for criterion in evaluation.get("testing_criteria") or []:
            imported = _import(evaluation, criterion, names, sandbox, judges)
            imported.items, imported.outputs = items, outputs
            imported.sandbox, imported.judges = sandbox, judges
            yield imported


def _output_items(contents: ArchiveContents, project: str, evaluation: str) -> Iterator[Item]:
    runs = url_path("evals", evaluation, "runs")
    for run in contents.items(project, runs):
        yield from contents.items(project, f"{runs}/{url_path(str(run['id']), 'output_items')}")


def _prompt_and_item(output: Item) -> Iterator[tuple[str, Item]]:
    request = sampled_request(output)
    if request and isinstance(output.get("datasource_item"), dict):
        yield digest_json(request), output["datasource_item"]


def _import(
    evaluation: Item, criterion: Item, names: set[str], sandbox: Sandbox | None, judges: Judges | None
) -> ImportedGrader:
    called = str(criterion.get("name") or criterion.get("type"))
    name = f"eval:{evaluation.get('name') or evaluation['id']}/{called}"
    if name in names:
        name = f"eval:{evaluation['id']}/{called}"
    names.add(name)
    known_as = frozenset(str(criterion[key]) for key in ("id", "name") if criterion.get(key))
    # OpenAI's responses have every optional field, as null.
    fields = {key: value for key, value in criterion.items() if key not in NOT_SENT and value is not None}
    try:
        grader = GRADER.validate_python(fields)
        check_runnable(grader, sandbox)
        grader = judges.with_own_models(grader) if judges else grader
    except ValidationError as error:
        first = error.errors()[0]
        return ImportedGrader(name, known_as, None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    except MensError as error:
        return ImportedGrader(name, known_as, None, str(error))
    return ImportedGrader(name, known_as, grader, "")


def score(imported: ImportedGrader, item: Item, answer: GateAnswer) -> float:
    """Return 1 if an answer passes, otherwise 0. An answer that is not JSON where JSON is read, or that makes code
    raise, does not pass.

    Raises:
        InvalidRequest: the grader cannot judge this item, e.g. a template names a field that it lacks.
        Unscored: a judge model gave no score.
    """
    return float(_judge(imported, item, answer)[1])


def _judge(imported: ImportedGrader, item: Item, answer: GateAnswer) -> tuple[float, bool]:
    assert imported.grader is not None
    try:
        sample = make_sample(answer.text, answer.tool_calls)
        ask = imported.judges.ask if imported.judges else None
        value = grade(imported.grader, item, sample, ask, sandbox=imported.sandbox).score
    except InvalidRequest as error:
        if error.code in OF_THE_JUDGE:
            raise Unscored(error.code) from None
        if error.code not in OF_THE_ANSWER:
            raise
        value = 0.0
    return value, is_passed(imported.grader, value)


def questions_of(imported: ImportedGrader, item: Item, answer: GateAnswer) -> Iterator[Body]:
    """Yield the requests to models that judge an answer."""
    if imported.grader is not None:
        yield from judge_questions(imported.grader, item, make_sample(answer.text, answer.tool_calls))


def stored_questions(imported: ImportedGrader) -> Iterator[Body]:
    """Yield the requests to models that judge OpenAI's stored answers again."""
    for output in imported.outputs:
        if answer := _stored_answer(output):
            yield from questions_of(imported, output.get("datasource_item") or {}, answer)


def check_agreement(imported: ImportedGrader) -> GraderCheck:
    """Grade OpenAI's stored answers again. Scores may differ in their last digits; the pass result may not."""
    compared = agreeing = unscored = 0
    differences: list[dict[str, str | float]] = []
    refused = imported.refused
    for output in imported.outputs:
        stored = next(
            (result for result in output.get("results") or [] if result.get("name") in imported.result_names), None
        )
        answer = _stored_answer(output)
        if imported.grader is None or stored is None or answer is None:
            continue
        try:
            here, passed = _judge(imported, output.get("datasource_item") or {}, answer)
        except Unscored:
            unscored += 1
            continue
        except MensError as error:
            refused = refused or str(error)
            break
        compared += 1
        there = float(stored.get("score") or 0.0)
        if abs(here - there) <= SCORE_TOLERANCE and passed == stored.get("passed", passed):
            agreeing += 1
        elif len(differences) < SHOWN_DIFFERENCES:
            differences.append({"item": str(output.get("id")), "stored": there, "here": here})
    may_block = not refused and compared > 0 and agreeing >= LEAST_AGREEMENT * compared
    return GraderCheck(imported.name, compared, agreeing, may_block, differences, refused, unscored)


def _stored_answer(output: Item) -> GateAnswer | None:
    turns: list[dict[str, Any]] = (output.get("sample") or {}).get("output") or []
    if not turns or not isinstance(turns[-1], dict):
        return None
    text = turns[-1].get("content")
    return GateAnswer(text if isinstance(text, str) else "", calls_of(turns[-1]))
