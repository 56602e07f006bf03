"""A conversation is compared without regard to case and white space, and with its roles and calls."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.datasets.conversation_text import normalised
from shared.datasets.rows import Message
from tests.support.texts import WHITE_SPACE, texts


def test_case_and_white_space_make_no_difference_and_roles_do() -> None:
    one = normalised([Message("user", "Hi  there\n"), Message("assistant", "HELLO")])
    assert one == normalised([Message("user", "hi there"), Message("assistant", " hello")])
    assert one != normalised([Message("system", "hi there"), Message("assistant", "hello")])


def reference(messages: list[Message]) -> str:
    turns = [f"<{message.role}> {message.content or ''}" for message in messages]
    return " ".join(" ".join(turns).lower().split())


@pytest.mark.exhaustive
@given(st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), st.none() | texts), max_size=4))
@example([Message("user", WHITE_SPACE), Message("assistant", f"a{' ' * 1000}b{WHITE_SPACE * 3}c")])
def test_fast_way_writes_what_lower_and_split_write(messages: list[Message]) -> None:
    assert normalised(messages) == reference(messages).encode()


def test_tool_calls_are_compared() -> None:
    first, second = ([Message("assistant", None, tool_calls=[{"name": name}])] for name in "ab")
    assert normalised(first) != normalised(second)
