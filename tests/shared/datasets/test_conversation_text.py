"""Conversations are compared with their roles and calls, but without regard to case and white space."""

from __future__ import annotations

from shared.datasets.conversation_text import digest64, written
from shared.datasets.fingerprints import fingerprints
from shared.datasets.rows import Message


def compared(*messages: Message) -> int:
    return fingerprints([written(messages)], near=False)[0][0]


def test_case_and_white_space_make_no_difference_and_roles_do() -> None:
    one = compared(Message("user", "Hi  there\n"), Message("assistant", "HELLO"))
    assert one == compared(Message("user", "hi there"), Message("assistant", " hello"))
    assert one != compared(Message("system", "hi there"), Message("assistant", "hello"))


def test_tool_calls_are_compared() -> None:
    first, second = (compared(Message("assistant", None, tool_calls=[{"name": name}])) for name in "ab")
    assert first != second


def test_half_a_character_is_a_question_mark() -> None:
    assert digest64("a\ud800") == digest64(b"a?")
