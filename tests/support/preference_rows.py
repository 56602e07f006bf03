"""Preference rows for tests."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
WORDS = ("bug", "file", "loop", "name", "test", "row", "list", "key")


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> Row:
    return {"role": "assistant", "content": text, **more}


def openai_row(prompt: str = "Why?", chosen: str = "Because.", rejected: str = "No.", **more: Any) -> Row:
    """OpenAI's form."""
    return {
        "input": {"messages": [user(prompt)], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [answer(chosen)],
        "non_preferred_output": [answer(rejected)],
        **more,
    }


def trl_row(prompt: str = "Why?", chosen: str = "Because.", rejected: str = "No.", **more: Any) -> Row:
    """TRL's conversational form."""
    return {"prompt": [user(prompt)], "chosen": [answer(chosen)], "rejected": [answer(rejected)], **more}


def implicit_row(prompt: str = "Why?", chosen: str = "Because.", rejected: str = "No.", **more: Any) -> Row:
    """TRL's form without a prompt: the common beginning of both sides is the prompt."""
    return {"chosen": [user(prompt), answer(chosen)], "rejected": [user(prompt), answer(rejected)], **more}


def plain_row(prompt: str = "Why?", chosen: str = "Because.", rejected: str = "No.", **more: Any) -> Row:
    """The plain form."""
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


FORMS = (openai_row, trl_row, implicit_row, plain_row)
PAIRS = [
    form(f"What is a {word}?", f"A {word} is a word.", f"I do not know what a {word} could be, sorry.")
    for number, word in enumerate(WORDS)
    for form in [FORMS[number % len(FORMS)]]
]
"""Eight pairs in all forms; the short and certain answer is preferred."""


def rated_row(prompt: str = "Why?", completion: str = "Because.", label: Any = True, **more: Any) -> Row:
    """A rated answer in the plain form."""
    return {"prompt": prompt, "completion": completion, "label": label, **more}


def rated_turns(prompt: str = "Why?", completion: str = "Because.", label: Any = True, **more: Any) -> Row:
    """A rated answer in TRL's conversational form."""
    return {"prompt": [user(prompt)], "completion": [answer(completion)], "label": label, **more}


def rated_chat(prompt: str = "Why?", completion: str = "Because.", label: Any = True, **more: Any) -> Row:
    """A chat whose last answer is rated."""
    return {"messages": [user(prompt), answer(completion)], "label": label, **more}


RATED_FORMS = (rated_row, rated_turns, rated_chat)
RATED = [
    form(f"What is a {word}?", text, label=label)
    for number, word in enumerate(WORDS)
    for form in [RATED_FORMS[number % len(RATED_FORMS)]]
    for text, label in ((f"A {word} is a word.", True), (f"I do not know what a {word} could be, sorry.", False))
]
"""Sixteen answers in all forms; the short and certain ones are rated good."""
