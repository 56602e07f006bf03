"""The shutdown date of a tuned model: its own date takes precedence over the table, even if it has passed."""

from __future__ import annotations

from datetime import date

import pytest

from openai_migration.archive.shutdown_dates import (
    MODEL_SOURCE,
    TABLE_SOURCE,
    TunedName,
    describe_days,
    ending_of,
    is_tuned,
    parse_name,
)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ft:gpt-4o-mini-2024-07-18:acme:support:9x", TunedName("gpt-4o-mini-2024-07-18", "support", None)),
        ("ft:gpt-4o-mini-2024-07-18:acme::9x", TunedName("gpt-4o-mini-2024-07-18", "", None)),
        ("ft:gpt-4.1-2025-04-14:acme:a:9x:ckpt-step-60", TunedName("gpt-4.1-2025-04-14", "a", 60)),
        ("davinci:ft-acme-2022-01-01", TunedName("davinci", "", None)),
    ],
)
def test_parts_of_a_name(name: str, parts: TunedName) -> None:
    assert parse_name(name) == parts
    assert is_tuned(name)


def test_a_base_is_not_tuned() -> None:
    assert not is_tuned("gpt-4o-mini-2024-07-18")


@pytest.mark.parametrize(
    ("model", "shutdown_date", "day", "source"),
    [
        ("ft:gpt-4o-mini-2024-07-18:a:b:c", "2027-02-01", date(2027, 2, 1), MODEL_SOURCE),
        ("ft:gpt-4o-mini-2024-07-18:a:b:c", None, date(2027, 1, 14), TABLE_SOURCE),
        ("ft:gpt-4o-mini-2024-07-18:a:b:c", "soon", date(2027, 1, 14), TABLE_SOURCE),
        ("ft:gpt-3.5-turbo-0125:a:b:c", None, date(2026, 10, 23), TABLE_SOURCE),
        ("ft:gpt-4-0613:a::c", None, date(2026, 10, 23), TABLE_SOURCE),
        ("ft:gpt-9:a:b:c", None, None, "not announced"),
    ],
)
def test_the_models_own_date_wins_over_the_table(
    model: str, shutdown_date: object, day: date | None, source: str
) -> None:
    ending = ending_of(model, shutdown_date)
    assert (ending.day, ending.source) == (day, source)


@pytest.mark.parametrize(("days", "text"), [(None, "?"), (-1, "gone"), (0, "0"), (52, "52")])
def test_days_left(days: int | None, text: str) -> None:
    assert describe_days(days) == text
