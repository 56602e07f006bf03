"""Conversion of column values to JSON, and of times to watermarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from corpus.reading.database import Column
from shared.errors import Code, InvalidRequest


def to_json(value: Any, column: Column) -> Any:
    """Return a column's value as a JSON value: times in ISO format, in UTC if they have a zone.

    Raises:
        InvalidRequest: ``CORPUS_COLUMN_UNSUPPORTED``: bytes, an array, an interval or another type.
    """
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool:
        return value
    if (convert := _CONVERTED.get(kind)) is not None:
        return convert(value)
    if isinstance(value, dict) or (isinstance(value, list) and column.is_json):
        return value
    kind_name = "an array" if isinstance(value, list) else f"a value of the type {kind.__name__}"
    raise InvalidRequest(
        Code.CORPUS_COLUMN_UNSUPPORTED,
        f"The column {column.name!r} holds {kind_name}.",
        remedy=f"Convert it in the query, such as `CAST({column.name} AS text)`, or leave the column out.",
        param=column.name,
    )


def _number(value: float | Decimal) -> int | float | None:
    if not math.isfinite(value):
        return None
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else float(value)


def _time(value: datetime) -> str:
    return (value.astimezone(UTC) if value.tzinfo else value).isoformat().replace("+00:00", "Z")


_CONVERTED: dict[type, Callable[[Any], Any]] = {
    float: _number, Decimal: _number, datetime: _time, date: date.isoformat, time: time.isoformat, UUID: str
}  # fmt: skip


class TimeForm(StrEnum):
    """Form in which a column holds times."""

    AWARE = "aware"
    NAIVE = "naive"
    DATE = "date"
    NUMBER = "number"
    TEXT = "text"


class Watermark:
    """The format of a watermark column, determined from one of its values.

    Args:
        sample: a value of the column.

    Raises:
        InvalidRequest: ``CORPUS_COLUMN_UNSUPPORTED``: the value is not a time.
    """

    def __init__(self, name: str, sample: Any) -> None:
        self._name = name
        self.form = self._form(sample)
        self._sample = sample

    def moment(self, value: Any) -> datetime:
        """Return a value of the column, or its JSON form, as a time in UTC."""
        if isinstance(value, int | float | Decimal):
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(value))
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise self._unsupported(f"{value[:40]!r} is not a time in ISO format") from None
        if not isinstance(value, datetime):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)

    def bound(self, moment: datetime) -> Any:
        """Return a time in the column's format, for comparison with its values."""
        if self.form is TimeForm.AWARE:
            return moment
        if self.form is TimeForm.NAIVE:
            return moment.replace(tzinfo=None)
        if self.form is TimeForm.DATE:
            return moment.date()
        if self.form is TimeForm.NUMBER:
            return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        separator = self._sample[10:11] or " "
        if len(self._sample) == 10:
            return moment.date().isoformat()
        zone = "Z" if self._sample.endswith("Z") else "+00:00" if self._sample.endswith("+00:00") else ""
        return moment.replace(tzinfo=None).isoformat(separator, "seconds") + zone

    def refuse_mixed(self, forms: Sequence[Sequence[str]]) -> None:
        """Refuse texts that do not sort by time.

        Args:
            forms: formats of the column's values: the separator between date and time, and the time zone.

        Raises:
            InvalidRequest: ``CORPUS_COLUMN_UNSUPPORTED``.
        """
        separators = sorted({separator for separator, _ in forms} - {""})
        zones = sorted({zone for _, zone in forms})
        if len(separators) > 1:
            written = " and ".join(map(repr, separators))
            raise self._unsupported(
                f"some of its texts have {written} between date and time, so they do not sort by time; write one, "
                "such as "
                f"`replace({self._name}, 'T', ' ') AS {self._name}`"
            )
        if others := [zone for zone in zones if zone.lstrip("+-").strip("0:") not in ("", "Z")]:
            raise self._unsupported(f"some of its texts end with {others[0]!r}, so they do not sort by time")

    def _form(self, sample: Any) -> TimeForm:
        if isinstance(sample, datetime):
            return TimeForm.AWARE if sample.tzinfo else TimeForm.NAIVE
        if isinstance(sample, date):
            return TimeForm.DATE
        if isinstance(sample, int | float | Decimal) and not isinstance(sample, bool):
            try:
                self.moment(sample)
            except (OverflowError, ValueError):
                raise self._unsupported(f"{sample} is not a number of seconds; divide milliseconds by 1000.0") from None
            return TimeForm.NUMBER
        if isinstance(sample, str):
            zone = sample[19:].partition("+")[2] or sample[19:].partition("-")[2]
            if zone not in ("", "00:00"):
                raise self._unsupported("its texts have a zone other than UTC, so they do not sort by time")
            self.moment(sample)
            return TimeForm.TEXT
        raise self._unsupported(f"it holds values of the type {type(sample).__name__}")

    def _unsupported(self, reason: str) -> InvalidRequest:
        return InvalidRequest(
            Code.CORPUS_COLUMN_UNSUPPORTED,
            f"The column {self._name!r} cannot be a watermark: {reason}.",
            remedy=(
                "Name a column with the time of each row's last change: a timestamp, a date, seconds since 1970, or "
                "ISO text in UTC."
            ),
            param=self._name,
        )
