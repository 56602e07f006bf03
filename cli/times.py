"""Times and durations of options: ``12h``, ``90d``, ``2027-01-31``, ``2027-01-31T18:00Z``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def parse_duration(text: str) -> int | None:
    """Parse a duration such as ``90d`` into seconds; return None if it is invalid."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else None


def parse_time(text: str, *, ahead: bool) -> str:
    """Convert a time to the API's format; a date means its beginning, and a time without a zone is UTC.

    Args:
        text: the user's input.
        ahead: whether a duration is counted forward from now; otherwise backward.

    Raises:
        ValueError: the text is not a time.
    """
    if (seconds := parse_duration(text)) is not None:
        try:
            return (datetime.now(UTC) + timedelta(seconds=seconds if ahead else -seconds)).isoformat()
        except OverflowError as error:
            raise ValueError(text) from error
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def past_time(text: str | None) -> str | None:
    """Callback of an option for a time in the past; None stays None."""
    try:
        return text and parse_time(text, ahead=False)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: give 2h, 7d, 2027-01-31 or 2027-01-31T18:00Z.") from None
