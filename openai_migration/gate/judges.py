"""Judge models: choose the installation's model for each grader of an eval, send it requests, and read its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import safe_name
from openai_migration.gate.answers import RECORDED_BOUND, Candidate, NewAnswer, read_lines, resolve
from openai_migration.receipts import GATE
from openai_migration.record import CHARACTERS_PER_TOKEN
from shared.errors import Code, Conflict, InvalidRequest, MensError
from shared.graders.model_graders import judge_request
from shared.graders.types import Grader, LabelModel, MultiGrader, ScoreModel
from shared.hashing import digest_json

JUDGE_ANSWER_TOKENS = 1024
"""Longest answer of a judge whose grader sets no limit."""
OF_MODELS = frozenset({"score_model", "label_model"})

Body = dict[str, Any]


class Unscored(Exception):
    """A judge gave no score: it got no request, or its answer is not a score. That says nothing about the judged
    answer.
    """


@dataclass(frozen=True, slots=True)
class Judges:
    """The models that judge, for one candidate.

    Attributes:
        candidate: id of the judged model, which cannot be a judge.
        served: id of the model that judges, by the name in graders.
        refused: why no model judges, by the name in graders.
        stored: answers by the digest of their request.
    """

    candidate: str
    served: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, MensError] = field(default_factory=dict)
    stored: Mapping[str, NewAnswer] = field(default_factory=dict)

    def with_own_models(self, grader: Grader) -> Grader:
        """Return the grader with its models replaced by this installation's judge models.

        Raises:
            MensError: the reason why no model judges.
        """
        if isinstance(grader, MultiGrader):
            graders = {name: self.with_own_models(part) for name, part in grader.graders.items()}
            return grader.model_copy(update={"graders": graders})
        if not isinstance(grader, ScoreModel | LabelModel):
            return grader
        if error := self.refused.get(grader.model):
            raise error
        return grader.model_copy(update={"model": self.served.get(grader.model, grader.model)})

    def ask(self, question: Body) -> Body:
        """Return the completion that was given to a question.

        Raises:
            Unscored: no completion exists.
        """
        answer = self.stored.get(digest_json(bounded(question)))
        if answer is None:
            raise Unscored("no judge was chosen")
        if answer.code:
            raise Unscored(answer.code)
        if answer.adapter and answer.adapter == self.candidate:
            raise Unscored("the judge is the candidate itself")
        return answer.response


def judge_models(contents: ArchiveContents, project: str) -> list[str]:
    """Return the OpenAI names of the models that the graders of a project's evals use."""
    criteria = (
        grader for evaluation in contents.items(project, "evals") for grader in evaluation.get("testing_criteria") or []
    )
    return sorted({name for criterion in criteria for name in _models_of(criterion)})


def _models_of(criterion: Mapping[str, Any]) -> Iterator[str]:
    if criterion.get("type") in OF_MODELS and isinstance(criterion.get("model"), str):
        yield criterion["model"]
    graders = criterion.get("graders")
    for part in graders.values() if isinstance(graders, dict) else ():
        yield from _models_of(part)


def find_judges(client: httpx.Client, names: Iterable[str], choices: Mapping[str, str], candidate: Candidate) -> Judges:
    """Return, for each name, the installation's model that judges instead.

    Args:
        choices: the user's choices, by the name in graders; the empty name stands for all other names.
    """
    served: dict[str, str] = {}
    refused: dict[str, MensError] = {}
    for name in names:
        chosen = choices.get(name) or choices.get("") or name
        if chosen == name and client.get(f"/v1/models/{quote(name, safe='')}").status_code != httpx.codes.OK:
            refused[name] = _refusal(name, "which is not served here")
            continue
        try:
            judge = resolve(client, chosen).served
        except Conflict as error:
            refused[name] = error
            continue
        if judge == candidate.served:
            refused[name] = _refusal(name, f"and {chosen} is the candidate itself")
        else:
            served[name] = judge
    return Judges(candidate.served, served, refused)


def _refusal(name: str, why: str) -> InvalidRequest:
    message = f"The grader uses the model {name}, {why}."
    remedy = f"Name a judge model of the installation: --judge '{name}=NAME'."
    return InvalidRequest(Code.GRADER_UNSUPPORTED, message, remedy=remedy, param="model")


def judge_questions(grader: Grader, item: Mapping[str, Any], sample: Mapping[str, Any]) -> Iterator[Body]:
    """Yield the requests to a grader's models about an answer; none for an item that the grader cannot judge."""
    if isinstance(grader, MultiGrader):
        for part in grader.graders.values():
            yield from judge_questions(part, item, sample)
    elif isinstance(grader, ScoreModel | LabelModel):
        try:
            yield bounded(judge_request(grader, item, sample))
        except MensError:
            return  # judging reports the reason


def bounded(question: Body) -> Body:
    """Return a question with a bound on its answer."""
    return {RECORDED_BOUND: JUDGE_ANSWER_TOKENS, **question}


def prompt_tokens(questions: Iterable[Body]) -> int:
    """Estimate the number of tokens of questions."""
    return sum(len(str(turn["content"])) for body in questions for turn in body["messages"]) // CHARACTERS_PER_TOKEN


def unanswered(questions: Iterable[Body], stored: Mapping[str, NewAnswer]) -> list[Body]:
    """Return questions without an answer, each once. A refusal is sent again."""
    by_digest = {digest_json(body): body for body in questions}
    return [body for digest, body in by_digest.items() if (answer := stored.get(digest)) is None or answer.code]


def judgements_file(model: str) -> str:
    """Return the path of the judges' answers in the comparison of a tuned model."""
    return f"{GATE}/{safe_name(model)}.judgements.jsonl"


def read_judgements(folder: Path, model: str) -> dict[str, NewAnswer]:
    """Read the judges' answers so far, by the digest of their request.

    Raises:
        ArtifactInvalid: the file cannot be read.
    """
    return read_lines(folder / judgements_file(model))
