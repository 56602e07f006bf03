"""Interface of a method: the row's values, and the requests that the method sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corpus.generation.asking import ModelAsker, RowDropped
from corpus.generation.completions import ModelRequest
from corpus.generation.endpoints import PERMITS_TRAINING
from corpus.generation.model_columns import MAX_SAMPLES, ModelColumn
from corpus.mixing.mix_file import recipe_invalid
from corpus.verdicts import VerdictCode
from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, MensError
from shared.graders.grading import OF_THE_ANSWER, grade, is_passed, make_sample
from shared.graders.templates import render
from shared.graders.types import Grader
from shared.sandbox.client import Sandbox

if TYPE_CHECKING:
    from corpus.generation.methods.self_instruct import InstructionPool

JUDGE_TOKENS = 1_024
"""Largest number of tokens of a judgement, for graders that do not set one."""
LIMIT = "max_completion_tokens"
_REASONING = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MethodTools:
    """Resources that methods share, for all rows.

    Attributes:
        seed: the recipe's seed.
        checkers: checkers of code.
        sandbox: sandbox for tests and for graders that run code; None if no column needs it.
        pools: instructions of the columns with ``self_instruct``, by name.
    """

    asker: ModelAsker
    seed: int = 0
    checkers: ContainedCheckers | None = None
    sandbox: Sandbox | None = None
    pools: Mapping[str, InstructionPool] = field(default_factory=dict)


@dataclass(slots=True)
class RowRequests:
    """The requests of one row.

    Attributes:
        index: number of the row.
        values: values of the columns so far.
        generators: one entry per column and model, for the provenance: method, endpoint, model, revision, digests of
            its requests.
        redactions: number of values that were replaced in its responses, by kind.
        checks: results of checks, for the provenance.
    """

    index: int
    tools: MethodTools
    values: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, dict[str, Any]] = field(default_factory=dict)
    redactions: dict[str, int] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)

    def ask(
        self,
        column: ModelColumn,
        prompt: str,
        *,
        sample: int = 0,
    ) -> str:
        """Return the model's answer to a prompt, without its reasoning.

        Raises:
            RowDropped: the answer is empty, cut off, refused, or holds a secret. And the errors of :meth:`ModelAsker.ask`.
        """
        messages = [{"role": "system", "content": self.fill(column.system)}] if column.system is not None else []
        messages.append({"role": "user", "content": prompt})
        # At temperature 0, equal prompts share one answer; otherwise each row has its own.
        number = sample if column.temperature == 0 else self.index * MAX_SAMPLES + sample
        options = {} if column.temperature is None else {"temperature": column.temperature}
        text = self.send(column, ModelRequest(column.model, messages, column.max_tokens, options, number))
        if not (answer := _without_reasoning(text)):
            raise RowDropped(VerdictCode.EMPTY)
        return answer

    def send(self, column: ModelColumn, request: ModelRequest) -> str:
        """Return the text of the response to a request, and record the request for the provenance."""
        response = self.tools.asker.ask(request)
        endpoint = self.tools.asker.endpoints[request.name]
        # A grader may have a different model from the column's.
        place = column.name if request.name == column.model else f"{column.name}:{request.name}"
        note = self.generators.setdefault(
            place,
            {
                "method": getattr(column, "method", ""),
                "endpoint": endpoint.place,
                "model": response.model or endpoint.model,
                "revision": response.revision,
                "requests": [],
                **({} if endpoint.is_ours else {"terms": PERMITS_TRAINING}),
            },
        )
        if response.key not in note["requests"]:
            note["requests"].append(response.key)
        for kind, count in response.redactions.items():
            self.redactions[kind] = self.redactions.get(kind, 0) + count
        return response.text

    def fill(self, template: str) -> str:
        """Return a template with the row's values.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``: a row of a file lacks a key.
        """
        try:
            return render(template, self.values, {})
        except MensError as error:
            raise recipe_invalid(f"Row {self.index}: {error.message}", "columns", None) from None

    def judge(self, column: ModelColumn, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request of a grader, as a chat completion.

        Args:
            name: name of the judge model.
            request: a request built by :func:`shared.graders.model_graders.judge_request`.
        """
        options = {key: value for key, value in request.items() if key not in ("model", "messages", LIMIT)}
        most = request.get(LIMIT, JUDGE_TOKENS)
        text = self.send(column, ModelRequest(name, request["messages"], most, options))
        return {"choices": [{"message": {"content": _without_reasoning(text)}}]}

    def score(self, column: ModelColumn, grader: Grader, text: str) -> float:
        """Return the score of an answer; 0 if the answer itself is the reason why it cannot be scored.

        Raises:
            RowDropped: ``NOT_JUDGED``: a model's judgement contains no score.
        """
        try:
            outcome = grade(
                grader,
                self.values,
                make_sample(text),
                ask=lambda request: self.judge(column, request["model"], request),
                checkers=self.tools.checkers,
                sandbox=self.tools.sandbox,
            )
        except MensError as error:
            if error.code in OF_THE_ANSWER:
                return 0.0
            if error.code is Code.GRADER_MODEL_ANSWER_INVALID:
                raise RowDropped(VerdictCode.NOT_JUDGED) from None
            if error.code is Code.GRADER_VARIABLE_INVALID:
                raise recipe_invalid(f"Row {self.index}: {error.message}", "columns", None) from None
            raise
        return outcome.score

    def passes(self, column: ModelColumn, text: str) -> bool:
        """Return whether an answer passes every grader of its column."""
        return all(is_passed(grader, self.score(column, grader, text)) for grader in column.graders)


def _without_reasoning(text: str) -> str:
    return _REASONING.sub("", text, count=1).strip()


Method = Callable[[Any, RowRequests], Any]
"""A function of the column and the row's requests that returns the value; raises :class:`RowDropped`."""
