"""Check criteria against the schema of their items: a missing field is reported when an eval is created, not in its
results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.errors import Code, InvalidRequest
from shared.evaluation.types import Criterion, CustomConfig, DataSourceConfig, EvalSpec
from shared.graders.checks import Schema
from shared.graders.grading import check_runnable
from shared.graders.model_graders import message_templates
from shared.graders.templates import Path, paths_of
from shared.graders.types import (
    CodeCheck,
    LabelModel,
    PassAtKCheck,
    PythonGrader,
    RegexCheck,
    SchemaCheck,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)

SAMPLE_FIELDS = frozenset({"output_text", "output_json", "output_tools", "choices"})
"""Fields of a model's answer."""
OTHER = "other"
"""Field of the evaluated sample with the second model's answer to the same item, for criteria that compare both."""
SAMPLE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "output_text": {"type": "string"},
        "output_json": {},
        "output_tools": {"type": "array", "items": {"type": "object"}},
        "choices": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["output_text"],
}
MAX_REFERENCES = 16
"""Largest number of a schema's references that are followed one after another."""
HERE_UNKNOWN = frozenset({Code.SANDBOX_UNAVAILABLE, Code.GRADER_UNSUPPORTED})
"""Error codes for parts that this installation lacks: such an eval can be stored, but is refused when it is run."""


def check_eval(spec: EvalSpec) -> None:
    """Check that the criteria of an eval can judge items of its schema.

    Raises:
        InvalidRequest: ``EVAL_INVALID``: the schema is invalid, or a template names a field that it lacks. ``param``
            names the criterion.
    """
    config = spec.data_source_config
    if isinstance(config, CustomConfig):
        try:
            Schema(config.item_schema)
        except InvalidRequest as error:
            raise _invalid("data_source_config.item_schema", error.message) from None
    for number, criterion in enumerate(spec.testing_criteria):
        param = f"testing_criteria.{number}"
        try:
            check_runnable(criterion)
        except InvalidRequest as error:
            if error.code not in HERE_UNKNOWN:
                error.param = param
                raise
        if isinstance(config, CustomConfig):
            check_templates(paths_of_criterion(criterion), config.item_schema, param)


def check_templates(paths: Iterator[Path], schema: Mapping[str, Any], param: str) -> None:
    """Check that paths under ``item`` lead to fields that a schema of items may have.

    Raises:
        InvalidRequest: ``EVAL_INVALID``.
    """
    for path in paths:
        if path[0] == "item" and not _leads_somewhere(schema, schema, path[1:]):
            fields = sorted(schema.get("properties") or {})
            has = f"it has {', '.join(map(repr, fields[:20]))}" if fields else "it does not have this field"
            message = f"{param} names {{{{ {written(path)} }}}}, which the item schema does not have: {has}."
            raise _invalid(param, message)


def check_for_traffic(spec: EvalSpec) -> None:
    """Check that the criteria of an eval can judge answers to real requests, for which no item was prepared.

    Raises:
        InvalidRequest: ``EVAL_INVALID``: a template names a field of the item other than its messages.
    """
    for number, criterion in enumerate(spec.testing_criteria):
        if reads_both(criterion):
            raise InvalidRequest(
                Code.EVAL_INVALID,
                f"testing_criteria.{number} compares both answers ({{{{ sample.{OTHER} }}}}); a shadow judges each "
                "answer on its own.",
                remedy="Name an eval whose criteria read one answer.",
                param="shadow.eval",
            )
        for path in paths_of_criterion(criterion):
            if path[0] == "item" and path[1:2] != ("messages",):
                raise InvalidRequest(
                    Code.EVAL_INVALID,
                    f"testing_criteria.{number} reads {{{{ {written(path)} }}}}; a real request has only "
                    f"{{{{ item.messages }}}}.",
                    remedy=(
                        "Name an eval whose criteria read the answer and item.messages: a check, a label or score by "
                        "a model."
                    ),
                    param="shadow.eval",
                )


def check_compares(criteria: Sequence[Criterion], models: int) -> None:
    """Check that a run has the second model that criteria compare with.

    Raises:
        InvalidRequest: ``GRADER_INVALID``.
    """
    for number, criterion in enumerate(criteria):
        if models < 2 and reads_both(criterion):
            raise InvalidRequest(
                Code.GRADER_INVALID,
                f"The grader {criterion.name!r} compares the answers of two models ({{{{ sample.{OTHER} }}}}), but "
                "the run has one model.",
                remedy="Set mens.incumbent (`--against` on the command line) to the model to compare with.",
                param=f"testing_criteria.{number}",
            )


def reads_both(criterion: Criterion) -> bool:
    """Return whether a criterion reads the answers of both models of a run."""
    return any(path[:2] == ("sample", OTHER) for path in paths_of_criterion(criterion))


def paths_of_criterion(criterion: Criterion) -> Iterator[Path]:
    """Iterate over every path in the templates of a criterion."""
    for template in _templates(criterion):
        yield from paths_of(template)


def models_that_judge(spec: EvalSpec) -> dict[str, int]:
    """Return the models that criteria use as judges, each with the number of its first criterion."""
    first_criteria: dict[str, int] = {}
    for number, criterion in enumerate(spec.testing_criteria):
        if isinstance(criterion, LabelModel | ScoreModel):
            first_criteria.setdefault(criterion.model, number)
    return first_criteria


def line_schema(config: DataSourceConfig) -> dict[str, Any]:
    """Return the JSON Schema of a whole line, ``item`` and, if expected, ``sample``, in OpenAI's form."""
    if not isinstance(config, CustomConfig):
        return {
            "type": "object",
            "properties": {"item": {"type": "object"}, "sample": SAMPLE_SCHEMA},
            "required": ["item"],
        }
    properties: dict[str, Any] = {"item": config.item_schema}
    if config.include_sample_schema:
        properties["sample"] = SAMPLE_SCHEMA
    return {"type": "object", "properties": properties, "required": [*properties]}


def written(path: Path) -> str:
    """Return a path in its written form: ``item.tags[0]``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _templates(criterion: Criterion) -> Iterator[str]:
    if isinstance(criterion, StringCheck | TextSimilarity):
        yield from (criterion.input, criterion.reference)
    elif isinstance(criterion, LabelModel | ScoreModel):
        for turn in criterion.input:
            yield from message_templates(turn)
    elif isinstance(criterion, PythonGrader) and isinstance(criterion.mens, RegexCheck | SchemaCheck | CodeCheck):
        yield criterion.mens.input
    elif isinstance(criterion, PythonGrader) and isinstance(criterion.mens, PassAtKCheck):
        yield from _templates(criterion.mens.of)


def _leads_somewhere(root: Mapping[str, Any], schema: Any, path: Path, references: int = 0) -> bool:
    """Return whether a value of a schema may have something at a path. Unsupported keywords count as yes."""
    if not path or not isinstance(schema, Mapping):
        return schema is not False
    if choices := _alternatives(root, schema):
        return references >= MAX_REFERENCES or any(
            _leads_somewhere(root, choice, path, references + 1) for choice in choices
        )
    if "allOf" in schema or "patternProperties" in schema:
        return True
    return _leads_somewhere(root, _inside(schema, path[0]), path[1:], references)


def _alternatives(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Any]:
    """Return the alternatives of a schema that is nothing but a reference or a choice."""
    if isinstance(reference := schema.get("$ref"), str):
        return [_referenced(root, reference)]
    choices = schema.get("anyOf", schema.get("oneOf"))
    return choices if isinstance(choices, list) else []


def _inside(schema: Mapping[str, Any], step: str | int) -> Any:
    """Return the schema of a value's field or element; False if it cannot have one."""
    if not _may_be(schema, "array" if isinstance(step, int) else "object"):
        return False
    if isinstance(step, int):
        return schema.get("items", {})
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and step in properties:
        return properties[step]
    # If fields are listed, another one is a mistake, unless the schema explicitly allows additional ones.
    return schema.get("additionalProperties", not properties)


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    types = schema.get("type")
    return types is None or kind in (types if isinstance(types, list) else [types])


def _referenced(root: Mapping[str, Any], reference: str) -> Any:
    value: Any = root
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ():
        value = value.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(value, Mapping) else {}
    return value if reference.startswith("#") else {}


def _invalid(param: str, message: str) -> InvalidRequest:
    remedy = "Correct the template, or add the field to data_source_config.item_schema."
    return InvalidRequest(Code.EVAL_INVALID, message, remedy=remedy, param=param)
