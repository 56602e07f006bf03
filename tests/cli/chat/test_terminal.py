"""A conversation on a terminal, with models that answer from a list."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import typer

from cli.chat.conversation import ChatSettings, Conversation
from cli.chat.terminal import CONTINUED, converse, read_message

GREEDY = ChatSettings(max_tokens=16, temperature=0.0)
ADAPTER = f"demo@{'3f' * 32}"


class Models:
    """Requests that were sent, and what is answered: the number of turns that were sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refused: set[int] = set()

    @contextmanager
    def stream(self, _method: str, _path: str, json: dict[str, Any]) -> Iterator[httpx.Response]:
        self.requests.append(json)
        if len(self.requests) in self.refused:
            yield httpx.Response(400, json={"error": {"message": "Too long.", "code": "REQUEST_INVALID"}})
            return
        headers = {"x-mens-adapter": ADAPTER} if json["model"] == "helper" else {}
        yield httpx.Response(200, headers=headers, text=events(f"answer {len(json['messages'])}"))


def events(content: str) -> str:
    """A stream of one answer."""
    return "".join(
        f"data: {text}\n\n" for text in (json.dumps({"choices": [{"delta": {"content": content}}]}), "[DONE]")
    )


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    found = Models()
    monkeypatch.setenv("MENS_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MENS_API_KEY", "mens-x")
    monkeypatch.setattr(httpx.Client, "stream", found.stream)
    return found


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Type lines as a user does, then Ctrl-D."""
    lines: list[str] = []

    def read(prompt: str) -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", read)
    return lines


@pytest.mark.parametrize("is_terminal", [True, False])
def test_answer_does_not_control_the_terminal(
    models: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    answer = "a\n\tb\x1b]52;c;ZXZpbA==\x07\u202ec"
    stream = events(answer)
    monkeypatch.setattr("tests.cli.chat.test_terminal.events", lambda _content: stream)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    conversation = Conversation("other", GREEDY)
    conversation.ask("b")
    assert capsys.readouterr().out == ("a\n\tb]52;c;ZXZpbA==c\n" if is_terminal else f"{answer}\n")
    assert conversation.turns[-1]["content"] == answer, "the next request has what the model wrote"


def sent(request: dict[str, Any]) -> list[str]:
    """Roles and texts of a request's messages."""
    return [f"{turn['role']}: {turn['content']}" for turn in request["messages"]]


def test_conversation_keeps_its_turns_and_names_the_adapter(
    models: Models, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["one", "", "two"]
    converse([Conversation("helper", ChatSettings(16, 0.0, "alice"), system="Be short.")])
    first, second = models.requests
    assert sent(second) == ["system: Be short.", "user: one", "assistant: answer 2", "user: two"]
    assert (first["user"], first["max_tokens"], first["stream"]) == ("alice", 16, True)
    assert capsys.readouterr().out == f"helper (demo@{'3f' * 6}…):\nanswer 2\nhelper (demo@{'3f' * 6}…):\nanswer 4\n\n"


def test_two_models_get_the_same_questions_and_their_own_answers(
    models: Models, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["one", "two"]
    converse([Conversation("helper", GREEDY), Conversation("base", GREEDY)])
    assert [request["model"] for request in models.requests] == ["helper", "base", "helper", "base"]
    assert sent(models.requests[3]) == ["user: one", "assistant: answer 1", "user: two"]
    assert "base:\nanswer 3" in capsys.readouterr().out


def test_refused_question_is_not_kept_and_the_conversation_continues(
    models: Models, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["long", "short"]
    models.refused = {1}
    converse([Conversation("base", GREEDY)])
    assert sent(models.requests[1]) == ["user: short"]
    assert "REQUEST_INVALID: Too long." in capsys.readouterr().err


def test_interrupted_answer_is_not_kept(models: Models, typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    conversation = Conversation("base", GREEDY)
    typed += ["one"]
    with monkeypatch.context() as patch:
        patch.setattr(typer, "echo", lambda text="", **_: interrupt() if text == "answer 1" else None)
        converse([conversation])
    assert conversation.turns == []


def test_commands_of_a_conversation(models: Models, typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    typed += ["one", "/reset", "two", "/system Be brief.", "three", "/system", "four", "/help", "/quit", "five"]
    converse([Conversation("base", GREEDY)])
    assert [sent(request) for request in models.requests] == [
        ["user: one"],
        ["user: two"],
        ["system: Be brief.", "user: three"],
        ["user: four"],
    ]
    assert "/help is not a command. /reset forgets" in capsys.readouterr().err


def test_message_may_have_several_lines(typed: list[str]) -> None:
    typed += [f"one{CONTINUED}", "two "]
    assert read_message() == "one\ntwo"
    assert read_message() is None
