"""Interface of a method: what it needs to know about a row, and how it asks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.checkers.contained import ContainedCheckers
from shared.corpus.generation.asking import ModelAsker, ModelRequest, RowDropped
from shared.corpus.generation.model_columns import ModelColumn
from shared.corpus.mixing.mix_file import recipe_invalid
from shared.corpus.verdicts import VerdictCode
from shared.errors import Code, MensError
from shared.graders.grading import OF_THE_ANSWER, grade, is_passed, make_sample
from shared.graders.templates import render
from shared.graders.types import Grader
from shared.sandbox.client import Sandbox

MAX_SAMPLES = 64
"""Most answers to one prompt."""
_REASONING = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MethodTools:
    """Shared means of methods, for all rows.

    Attributes:
        checkers: of code.
        sandbox: of tests and of graders that run code; None if no column needs it.
    """

    asker: ModelAsker
    checkers: ContainedCheckers | None = None
    sandbox: Sandbox | None = None


@dataclass(slots=True)
class RowRequests:
    """The requests of one row.

    Attributes:
        index: number of the row.
        values: of the columns so far.
        generators: of each column, for the provenance: method, endpoint, model, revision, digests of its requests.
        redactions: number of values that were replaced in its responses, by kind.
    """

    index: int
    tools: MethodTools
    values: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, dict[str, Any]] = field(default_factory=dict)
    redactions: dict[str, int] = field(default_factory=dict)

    def ask(
        self,
        column: ModelColumn,
        prompt: str,
        *,
        sample: int = 0,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        """Return the model's answer to a prompt, without its reasoning.

        Args:
            temperature: other than the column's.
            max_tokens: other than the column's.

        Raises:
            RowDropped: the answer is empty, cut off, refused, or holds a secret. And the errors of :meth:`ModelAsker.ask`.
        """
        messages = [{"role": "system", "content": self.fill(column.system)}] if column.system is not None else []
        messages.append({"role": "user", "content": prompt})
        heat = column.temperature if temperature is None else temperature
        # At temperature 0 equal prompts have one answer; else each row has its own.
        number = sample if heat == 0 else self.index * MAX_SAMPLES + sample
        text = self.send(column, ModelRequest(column.model, messages, max_tokens or column.max_tokens, heat, number))
        answer = _REASONING.sub("", text, count=1).strip() if text.lstrip().startswith("<think>") else text.strip()
        if not answer:
            raise RowDropped(VerdictCode.EMPTY)
        return answer

    def send(self, column: ModelColumn, request: ModelRequest) -> str:
        """Return the text of the response to a request, and note it for the provenance."""
        response = self.tools.asker.ask(request)
        endpoint = self.tools.asker.endpoints[request.name]
        note = self.generators.setdefault(
            column.name,
            {
                "method": getattr(column, "method", ""),
                "endpoint": endpoint.place,
                "model": response.model or endpoint.model,
                "revision": response.revision,
                "requests": [],
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

    def score(self, grader: Grader, text: str) -> float:
        """Return the score of an answer; 0 if it is to blame for having none."""
        try:
            found = grade(
                grader,
                self.values,
                make_sample(text),
                checkers=self.tools.checkers,
                sandbox=self.tools.sandbox,
            )
        except MensError as error:
            if error.code in OF_THE_ANSWER:
                return 0.0
            if error.code is Code.GRADER_VARIABLE_INVALID:
                raise recipe_invalid(f"Row {self.index}: {error.message}", "columns", None) from None
            raise
        return found.score

    def passes(self, graders: list[Grader], text: str) -> bool:
        """Return whether an answer passes every grader."""
        return all(is_passed(grader, self.score(grader, text)) for grader in graders)


Method = Callable[[Any, RowRequests], Any]
"""Column and the row's requests → the value; raises :class:`RowDropped`."""
