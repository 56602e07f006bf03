"""OpenAI's shutdown dates: the date in a model's own entry, or else a date from a table that names its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

EVALS_END = date(2026, 11, 30)
TRAINING_ENDS = date(2027, 1, 6)
TABLE_SOURCE = "OpenAI's Deprecations page, as read in November 2026"
MODEL_SOURCE = "shutdown_date of the model"
_PASSED, _JANUARY = date(2026, 10, 23), date(2027, 1, 14)
TUNED_MODELS_END: dict[str, date] = {
    "babbage-002": _PASSED,
    "davinci-002": _PASSED,
    "gpt-3.5-turbo": _PASSED,
    "gpt-4": _PASSED,
    "gpt-4.1-nano-2025-04-14": _PASSED,
    "o4-mini-2025-04-16": _PASSED,
    "gpt-4o-2024-08-06": _JANUARY,
    "gpt-4o-2024-11-20": _JANUARY,
    "gpt-4o-mini-2024-07-18": _JANUARY,
    "gpt-4.1-2025-04-14": _JANUARY,
    "gpt-4.1-mini-2025-04-14": _JANUARY,
}
"""Last day of a base's tuned models. A base that is not listed is looked up again without its date suffix."""
_TUNED = re.compile(r"ft:(?P<base>[^:]+):(?P<org>[^:]*):(?P<suffix>[^:]*):(?P<id>[^:]+)(?::ckpt-step-(?P<step>\d+))?")


@dataclass(frozen=True, slots=True)
class TunedName:
    """The parts of ``ft:BASE:ORG:SUFFIX:ID``; ``suffix`` is empty if the job had none, ``step`` is None unless it is a
    checkpoint.
    """

    base: str
    suffix: str
    step: int | None


@dataclass(frozen=True, slots=True)
class ModelEnding:
    """Date on which a model ends, and the source of that date; ``day`` is None if neither OpenAI nor the table has one."""

    day: date | None
    source: str

    def days_left(self, today: date) -> int | None:
        """Return the days until then; negative if it is over."""
        return (self.day - today).days if self.day else None


def is_tuned(model: str) -> bool:
    """Return whether a name is that of a tuned model: ``ft:base:…``, or ``base:ft-…``, the form until 2023."""
    return model.startswith("ft:") or ":ft-" in model


def parse_name(model: str) -> TunedName:
    """Return the parts of a tuned model's name; in other forms, the base is the part before the first colon."""
    if not (match := _TUNED.fullmatch(model)):
        return TunedName(model.partition(":")[0], "", None)
    return TunedName(match["base"], match["suffix"], int(match["step"]) if match["step"] else None)


def ending_of(model: str, shutdown_date: object) -> ModelEnding:
    """Return when a tuned model ends: the date in OpenAI's entry takes precedence over the table."""
    try:
        return ModelEnding(date.fromisoformat(str(shutdown_date)), MODEL_SOURCE)
    except ValueError:
        pass
    base = parse_name(model).base
    day = TUNED_MODELS_END.get(base) or TUNED_MODELS_END.get(re.sub(r"-(\d{4}-\d\d-\d\d|\d{4})$", "", base))
    return ModelEnding(day, TABLE_SOURCE if day else "not announced")


def describe_days(days: int | None) -> str:
    """Describe the days left."""
    if days is None:
        return "?"
    return "gone" if days < 0 else str(days)
