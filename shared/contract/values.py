"""Values that contracts consist of: names, strict numbers, template arguments, and the base of every section."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

BAD_NAME = "bad_name"
"""Pydantic's error type of a name that :func:`describe_bad_name` describes."""
_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
_FOREIGN_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,255}$"


def describe_bad_name(text: str) -> str | None:
    """Return the fault of a name, as a sentence; None when it is valid."""
    if re.fullmatch(_NAME_PATTERN, text):
        return None
    return (
        f"{text[:80]!r} is not a valid name: lower-case letters, digits, '.', '_' and '-', at most 64 of them, a "
        "letter or digit "
        "first; e.g. support-v2"
    )


def _check_name(value: object) -> object:
    if isinstance(value, str) and (fault := describe_bad_name(value)):
        raise PydanticCustomError(BAD_NAME, "{fault}", {"fault": fault})
    return value


def describe_bad_foreign_name(text: str) -> str | None:
    """Return the fault of a name of another provider's model, as a sentence; None when it is valid."""
    if re.fullmatch(_FOREIGN_NAME_PATTERN, text):
        return None
    return (
        f"{text[:80]!r} is not a valid foreign name: letters, digits, '.', '_', ':' and '-', at most 256 of them, a "
        "letter or digit "
        "first; e.g. ft:gpt-4o-mini-2024-07-18:acme:support:9xAbC1"
    )


def _check_foreign_name(value: object) -> object:
    if isinstance(value, str) and (fault := describe_bad_foreign_name(value)):
        raise PydanticCustomError(BAD_NAME, "{fault}", {"fault": fault})
    return value


Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""A strict number, unlike pydantic's default: neither true nor a string is accepted."""

Name = Annotated[str, StringConstraints(pattern=_NAME_PATTERN), BeforeValidator(_check_name)]
"""A name that callers choose (alias, suffix, base model): safe in a URL, a file name and a log line."""
ForeignNameText = Annotated[str, StringConstraints(pattern=_FOREIGN_NAME_PATTERN), BeforeValidator(_check_foreign_name)]
"""A name of another provider's model: safe in URLs, log lines and JSON without escapes. Adapters' ids are invalid."""
ParentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,255}$")]
"""Any name of an adapter: its id, an alias, or a foreign name."""


_Item = TypeVar("_Item")


class FrozenDict(dict[str, _Item]):
    """An immutable dictionary, used in values whose digests are stored elsewhere."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a plan cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict[_Item]], tuple[dict[str, _Item]]]:
        # A dictionary is normally copied by filling it item by item, which this class refuses.
        return type(self), (dict(self),)


MAX_ARGUMENTS = 8
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,63}$")]
ArgumentValue = StrictBool | Integer | Annotated[StrictStr, Field(max_length=64)]
TemplateArguments = Annotated[
    Mapping[ArgumentName, ArgumentValue],
    Field(max_length=MAX_ARGUMENTS),
    AfterValidator(lambda arguments: FrozenDict(sorted(arguments.items()))),
]
"""Arguments of a chat template by name, e.g. ``{"enable_thinking": False}``; their order does not matter."""


def describe_arguments(arguments: Mapping[str, Any]) -> str:
    """Describe template arguments for a person, e.g. ``enable_thinking = false``."""
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(arguments.items()))


class ContractValue(BaseModel):
    """Frozen, closed value: the base of contract sections, plans and preset files. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
