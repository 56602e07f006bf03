"""The items of a run: read from a JSONL file, and checked before any model gets a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shared.errors import Code, InvalidRequest
from shared.evaluation.criteria import OTHER, SAMPLE_FIELDS, paths_of_criterion, written
from shared.evaluation.prompts import messages_of
from shared.evaluation.types import CustomConfig, EvalSpec, InputMessages, SourceItem
from shared.graders.checks import Schema
from shared.graders.templates import Path as TemplatePath
from shared.graders.templates import value_at

MAX_LINE_BYTES = 4 << 20
MAX_ERRORS = 20
CHARACTERS_PER_TOKEN = 4
"""Characters per token, for estimates only."""

_LINE = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class ItemsReport:
    """Findings on the items of a run.

    Attributes:
        prompt_characters: number of characters of all prompts together, each sent once.
    """

    count: int = 0
    prompt_characters: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)

    def raise_if_invalid(self, param: str, *, is_file: bool) -> None:
        """Raise an error if an item is invalid.

        Raises:
            InvalidRequest: ``EVAL_ITEMS_INVALID``, with the first faults.
        """
        if self.errors:
            first = self.errors[0]
            place = f"Line {first['line']}" if is_file else f"Item {first['item']}"
            raise InvalidRequest(
                Code.EVAL_ITEMS_INVALID,
                f"{place}: {first['reason']}",
                remedy="Correct the items; `details.errors` lists the first of them.",
                param=param if is_file else f"{param}.{first['item']}",
                details={"errors": self.errors},
            )
        if not self.count:
            raise InvalidRequest(
                Code.EVAL_ITEMS_INVALID, "The request contains no items.", remedy="Send at least one.", param=param
            )


def read_items(path: Path) -> Iterator[SourceItem]:
    """Read the items of a JSONL file, one at a time. Empty lines are skipped.

    Raises:
        InvalidRequest: ``EVAL_ITEMS_INVALID`` with the line: it is not an item.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise _bad_line(number, f"it is longer than {MAX_LINE_BYTES} bytes.")
            if not line.isspace():
                yield _parse(line, number)


def check_items(
    items: Iterable[SourceItem], spec: EvalSpec, prompt: InputMessages | None, *, is_sampled: bool, limit: int
) -> ItemsReport:
    """Check every item against the schema, the prompt and the criteria.

    Args:
        items: the run's items.
        spec: the eval's specification.
        prompt: template for each item; None: no model gets a request.
        is_sampled: whether a model answers; else the items' own answers are judged.
        limit: largest number of items.

    Raises:
        InvalidRequest: ``EVAL_TOO_MANY_ITEMS``; ``EVAL_ITEMS_INVALID``: a line is not an item.
    """
    config, report = spec.data_source_config, ItemsReport()
    schema = Schema(config.item_schema) if isinstance(config, CustomConfig) else None
    paths = [path for criterion in spec.testing_criteria for path in paths_of_criterion(criterion)]
    if is_sampled:
        _check_sample_paths(paths)
    for number, item in enumerate(items):
        if number >= limit:
            raise _too_many(limit)
        report.count += 1
        reason = schema.fault(item.item) if schema else None
        try:
            if prompt is not None:
                report.prompt_characters += sum(
                    len(str(turn.get("content"))) for turn in messages_of(prompt, item.item)
                )
            if not reason:
                _check_paths(paths, item, is_sampled=is_sampled)
        except InvalidRequest as error:
            reason = reason or error.message
        if reason and len(report.errors) < MAX_ERRORS:
            report.errors.append({"item": number, "line": number + 1, "reason": reason[:500]})
    return report


def check_count(answers: int, limit: int) -> None:
    """Refuse a run with more answers than the limit.

    Raises:
        InvalidRequest: ``EVAL_TOO_MANY_ITEMS``.
    """
    if answers > limit:
        raise _too_many(limit)


def _check_paths(paths: Iterable[TemplatePath], item: SourceItem, *, is_sampled: bool) -> None:
    for path in paths:
        if path[0] == "item":
            value_at(path, item.item, {})
        elif not is_sampled and path[1:2] != ("output_json",):
            if item.sample is None:
                message = f"a criterion reads {written(path)}, and the row has no `sample`."
                raise InvalidRequest(Code.EVAL_ITEMS_INVALID, message)
            value_at(path, {}, item.sample)


def _check_sample_paths(paths: Iterable[TemplatePath]) -> None:
    for path in paths:
        # Whether the run has a second model is checked with its models (`check_compares`).
        fields = path[2:] if path[:2] == ("sample", OTHER) else path[1:]
        if path[0] == "sample" and fields and fields[0] not in SAMPLE_FIELDS:
            raise InvalidRequest(
                Code.EVAL_INVALID,
                f"A criterion reads {written(path)}; a model's answer has only {', '.join(sorted(SAMPLE_FIELDS))}.",
                remedy="Create an eval whose criteria read one of these fields.",
                param="testing_criteria",
            )


def _parse(line: bytes, number: int) -> SourceItem:
    try:
        value = _LINE.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad_line(number, f"it is not a JSON object: {error}") from None
    item, sample = value.get("item"), value.get("sample")
    if not isinstance(item, dict):
        raise _bad_line(number, "the object `item` is missing.")
    if not isinstance(sample, dict | None) or value.keys() - {"item", "sample"}:
        raise _bad_line(number, "next to `item`, only the object `sample` is allowed.")
    return SourceItem.model_construct(item=item, sample=sample)


def _bad_line(number: int, reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.EVAL_ITEMS_INVALID,
        f"Line {number}: {reason}",
        remedy='Each line is {"item": {…}}, and may have "sample": {…}.',
        param="data_source.source.id",
        details={"errors": [{"item": number - 1, "line": number, "reason": reason}]},
    )


def _too_many(limit: int) -> InvalidRequest:
    return InvalidRequest(
        Code.EVAL_TOO_MANY_ITEMS,
        f"The run would have more than {limit} answers.",
        remedy="Take fewer items or samples, or raise MENS_MAX_EVAL_ITEMS.",
        param="data_source.source",
    )
