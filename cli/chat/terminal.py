"""A conversation on a terminal: reads messages until the user ends it, and asks one model or several each of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import typer

from cli.chat.conversation import Conversation, echo_title
from cli.client.connection import note

HELP = (
    "/reset forgets the conversation, /system TEXT begins a new one with this system prompt, /quit or Ctrl-D ends it."
)
CONTINUED = "\\"
"""Ends a line that continues in the next one."""


def converse(conversations: Sequence[Conversation]) -> None:
    """Ask every model each message that the user types; an error ends an answer, not the conversation."""
    with suppress(ImportError):
        import readline  # noqa: F401  (gives `input` a history and editing)
    note(f"chat with {' and '.join(conversation.model for conversation in conversations)}. {HELP}")
    while (message := read_message()) is not None:
        if message.startswith("/"):
            if not obey(message, conversations):
                return
        elif message:
            ask_all(message, conversations)


def ask_all(message: str, conversations: Sequence[Conversation]) -> None:
    """Ask every model, and print the answers one below the other, each under the name of its model."""
    for conversation in conversations:
        try:
            conversation.ask(message, echo_title)
        except KeyboardInterrupt:
            typer.echo("\n(stopped; this answer is not kept)")
        except typer.Exit:
            note("(the question is not kept)")


def read_message() -> str | None:
    """Return the next message, or None if the user ends the conversation. A backslash at a line's end continues it."""
    lines: list[str] = []
    try:
        while not lines or lines[-1].endswith(CONTINUED):
            lines.append(input("... " if lines else "you: "))
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return None
    return "\n".join(line.removesuffix(CONTINUED) for line in lines).strip()


def obey(command: str, conversations: Sequence[Conversation]) -> bool:
    """Carry out a command of the user; return whether the conversation continues."""
    name, _, argument = command.partition(" ")
    if name in ("/quit", "/exit"):
        return False
    if name not in ("/reset", "/system"):
        note(f"{name} is not a command. {HELP}")
        return True
    for conversation in conversations:
        conversation.turns.clear()
        if name == "/system":
            conversation.system = argument.strip() or None
    note("a new conversation" + (", without a system prompt" if name == "/system" and not argument.strip() else ""))
    return True
