"""Which answers count as right, and that everything that lessons name exists."""

from __future__ import annotations

import json

import pytest

from cli.demo.lessons import EXAMPLES, has_the_fields, has_the_values, support, tickets

REFERENCE = '{"service": "billing", "problem": "slow", "since": "09:30", "city": "Oslo"}'


@pytest.mark.parametrize(
    ("answer", "fields", "values"),
    [
        (REFERENCE, True, True),
        (json.dumps(dict(reversed(json.loads(REFERENCE).items())), indent=1), True, True),
        (REFERENCE.replace("Oslo", "Bergen"), True, False),
        (REFERENCE.replace("city", "town"), False, False),
        (REFERENCE[:-1] + ', "more": 1}', False, False),
        (f"Here is the ticket: {REFERENCE}", False, False),
        (REFERENCE[:-2], False, False),
        ("[" * 100_000, False, False),
        ("[]", False, False),
        ("", False, False),
    ],
)
def test_only_the_same_object_is_right(answer: str, fields: bool, values: bool) -> None:
    assert (has_the_fields(answer, REFERENCE), has_the_values(answer, REFERENCE)) == (fields, values)


@pytest.mark.parametrize("lesson", [tickets(), support()], ids=lambda lesson: lesson.alias)
def test_lessons_name_files_and_judge_their_own_references(lesson) -> None:  # type: ignore[no-untyped-def]
    for name in filter(None, (lesson.train, lesson.validation)):
        assert (EXAMPLES / name).is_file()
    assert all(lesson.is_right(item.reference, item.reference) for item in lesson.items)
    assert not any(lesson.is_right("I do not know.", item.reference) for item in lesson.items)
