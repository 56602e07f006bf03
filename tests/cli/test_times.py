"""Options with times and durations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from cli.times import parse_duration, parse_time, past_time


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("2h", 7200), ("90d", 7_776_000), ("0d", None), ("h", None)]
)
def test_durations_of_options(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


def test_time_is_absolute_or_counted_from_now() -> None:
    assert parse_time("2027-01-31", ahead=True) == "2027-01-31T00:00:00+00:00"
    assert parse_time("2027-01-31T18:00Z", ahead=False) == "2027-01-31T18:00:00+00:00"
    back, on = (datetime.fromisoformat(parse_time("2h", ahead=ahead)) - datetime.now(UTC) for ahead in (False, True))
    assert back < timedelta(hours=-1.9) and on > timedelta(hours=1.9)


@pytest.mark.parametrize("text", ["yesterday", "2h ago", "999999d"])
def test_other_text_is_not_a_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not a time: give 2h, 7d"):
        past_time(text)
    assert past_time(None) is None
