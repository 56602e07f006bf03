"""Method ``answer``: the model's answer to a prompt, if it passes the checks."""

from __future__ import annotations

from corpus.generation.asking import RowDropped
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import AnswerColumn
from corpus.verdicts import VerdictCode


def answer(column: AnswerColumn, row: RowRequests) -> str:
    """Return the answer.

    Raises:
        RowDropped: ``CHECK_FAILED``, and the errors of :meth:`RowRequests.ask`.
    """
    assert column.prompt is not None
    text = row.ask(column, row.fill(column.prompt))
    if not row.passes(column, text):
        raise RowDropped(VerdictCode.CHECK_FAILED)
    return text
