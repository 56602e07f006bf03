"""Method ``judge``: a number or a label that a model gives, for example for the answer of another column."""

from __future__ import annotations

from corpus.generation.asking import RowDropped
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import JudgeColumn, ModelColumn
from corpus.verdicts import VerdictCode
from shared.graders.checks import parse_json
from shared.graders.model_graders import result_request


def judge(column: JudgeColumn, row: RowRequests) -> int | str:
    """Return the number, rounded, or the label.

    Raises:
        RowDropped: ``JUDGED_BAD``: the number is too small, or the label does not pass. ``NOT_JUDGED``.
    """
    result = judgement(column, row, row.fill(column.prompt), column.result_schema)
    if column.labels is not None:
        if result not in column.labels:
            raise RowDropped(VerdictCode.NOT_JUDGED)
        if column.passing is not None and result not in column.passing:
            raise RowDropped(VerdictCode.JUDGED_BAD)
        return str(result)
    if isinstance(result, bool) or not isinstance(result, int | float) or not abs(result) < 1e15:
        raise RowDropped(VerdictCode.NOT_JUDGED)
    number = round(min(max(result, column.range[0]), column.range[1]))
    if column.least is not None and number < column.least:
        raise RowDropped(VerdictCode.JUDGED_BAD)
    return number


def judgement(column: ModelColumn, row: RowRequests, prompt: str, schema: dict[str, object]) -> object:
    """Return the judgement of the column's model on a prompt, as JSON that follows a schema.

    Raises:
        RowDropped: ``NOT_JUDGED``: the answer contains no result.
    """
    messages = [{"role": "system", "content": row.fill(column.system)}] if column.system is not None else []
    messages.append({"role": "user", "content": prompt})
    request = result_request(column.model, messages, schema)
    if column.temperature is not None:
        request["temperature"] = column.temperature
    completion = row.judge(column, column.model, request | {"max_completion_tokens": column.max_tokens})
    try:
        return parse_json(completion["choices"][0]["message"]["content"])["result"]
    except (ValueError, KeyError, TypeError):
        raise RowDropped(VerdictCode.NOT_JUDGED) from None
