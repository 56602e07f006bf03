"""The form of a chat template: the strings that it writes before and after each role's content, found and verified by
rendering.

A chat template is a program, and Ollama's are programs in another language. Most of them are simple, though: constant
strings around the turns. These strings are found here by rendering marked chats, and a form counts only if it
reproduces the template's output for every probe chat, character by character. A template that does more has no form,
and is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shared.errors import Code, InvalidRequest
from shared.tokenization.chat_template import ChatTemplate, Turn

MARKS = ("Qa4w", "Qb4w", "Qc4w", "Qd4w")
"""Strings that templates neither change nor write themselves."""
PROBE_TEXTS = ("plain", 'two\nlines, "quoted" & <tagged>', "{{ .Content }} {% tags %}", "数据, żółć 🙂", "a brace {")
PROBE_CHATS = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)
"""Chats in the form in which Ollama passes them to a template: consecutive turns of one role are joined."""
LATE_SYSTEM = ("user", "assistant", "system", "user")
CLOCK = "strftime_now"


@dataclass(frozen=True, slots=True)
class TurnForm:
    """The strings before and after a turn's content."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ChatForm:
    """A chat template as constant strings around the turns.

    Attributes:
        start: written first, whatever follows.
        opening: written next if the first turn is not a system turn, e.g. a default system prompt.
        system: None if the template takes no system turn.
        user_after_system: string before a user's content directly after a system turn, if it is not ``user.before``.
        prompt: prompt for the answer.
    """

    start: str
    opening: str
    system: TurnForm | None
    user: TurnForm
    user_after_system: str | None
    assistant: TurnForm
    prompt: str

    def render(self, turns: Sequence[Turn]) -> str:
        """Render a chat with the prompt for an answer in this form; a system turn requires a system form."""
        forms = {"system": self.system, "user": self.user, "assistant": self.assistant}
        texts = [self.start, "" if turns[0]["role"] == "system" else self.opening]
        previous = ""
        for turn in turns:
            form = forms[turn["role"]]
            assert form is not None
            joined = self.user_after_system if (previous, turn["role"]) == ("system", "user") else None
            texts += [form.before if joined is None else joined, turn["content"], form.after]
            previous = turn["role"]
        return "".join([*texts, self.prompt])


def find_form(template: ChatTemplate, tokens: Sequence[str] = ()) -> ChatForm:
    """Return the form of a chat template.

    Args:
        tokens: added tokens of the vocabulary; among equivalent forms, the one whose strings begin with a token is
            used.

    Raises:
        InvalidRequest: ``OLLAMA_TEMPLATE_UNSUPPORTED``, with the feature of the template that has no form.
    """
    if CLOCK in template.text:
        raise _unsupported("it writes the current date")
    if _texts_around(template, ("user", "assistant", "user")) is None:
        raise _unsupported("it rejects a chat of user and assistant, or changes their text")
    for form in _candidates(template, tokens):
        if all(_reproduces(form, template, chat) for chat in _probe_chats(form)):
            return form
    raise _unsupported("the markup around a turn depends on more than the roles of this turn and the one before")


def takes_late_system(form: ChatForm, template: ChatTemplate) -> bool:
    """Return whether the form also holds for a system turn that is not the first one."""
    return form.system is not None and _reproduces(form, template, _turns(LATE_SYSTEM, MARKS), refusal_counts=False)


def differences(form: ChatForm, template: ChatTemplate) -> list[str]:
    """Return sentences on what the template does beyond its form, which a model in Ollama will lack."""
    cases = {
        "White space around turns is stripped by the base's template, but kept here.": _turns(["user"], ["  Qa4w\n"]),
        "Thoughts in earlier answers are removed by the base's template, but kept here.": _turns(
            ("user", "assistant", "user"), ("Qa4w", "<think>\nQb4w\n</think>\n\nQc4w", "Qd4w")
        ),
    }
    sentences = [sentence for sentence, chat in cases.items() if not _reproduces(form, template, chat)]
    if form.system is None:
        sentences.append("The base's template has no system turn, so Ollama returns an error for chats that have one.")
    return [*sentences, "The template has no tools: Ollama refuses a request with tools."]


def _candidates(template: ChatTemplate, tokens: Sequence[str]) -> Iterator[ChatForm]:
    """Yield forms that fit a chat without a system turn and one with it; the most natural one first."""
    first, to_assistant, to_user, to_prompt = _texts_around(template, ("user", "assistant", "user")) or [""] * 4
    with_system = _texts_around(template, ("system", "user"))
    after_question = _common(to_assistant, to_prompt)
    for after_assistant in _cuts(to_user, _tail(template, ("user", "assistant")), tokens):
        before_user = to_user[len(after_assistant) :]
        if not first.endswith(before_user):
            continue
        for after_user in _cuts(after_question, _tail(template, ("user",)), tokens):
            plain = ChatForm(
                start="",
                opening=first.removesuffix(before_user),
                system=None,
                user=TurnForm(before_user, after_user),
                user_after_system=None,
                assistant=TurnForm(to_assistant[len(after_user) :], after_assistant),
                prompt=to_prompt[len(after_user) :],
            )
            yield from _with_system(plain, with_system, template.special_tokens.get("bos_token", ""))


def _with_system(plain: ChatForm, texts: list[str] | None, bos: str) -> Iterator[ChatForm]:
    """Yield completed forms: with the common beginning of both kinds of chat, and the system turn's strings if the
    template takes one.
    """
    head = plain.opening
    if texts is None:
        start = bos if head.startswith(bos) else ""
        yield replace(plain, start=start, opening=head.removeprefix(start))
        return
    before, between, _ = texts
    apart = between.endswith(plain.user.before)
    after = between.removesuffix(plain.user.before) if apart else ""
    common = _common(head, before)
    for start in dict.fromkeys([bos if common.startswith(bos) else "", common]):
        yield replace(
            plain,
            start=start,
            opening=head.removeprefix(start),
            system=TurnForm(before.removeprefix(start), after),
            user_after_system=None if apart else between,
        )


def _common(a: str, b: str) -> str:
    """Return the common beginning of both strings."""
    return "".join(
        character for character, other in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )


def _cuts(text: str, tail: str, tokens: Sequence[str]) -> list[str]:
    """Return the beginnings of a string with which a turn may end: first the end of a chat, then the parts before a
    token, then all others, the longest first.
    """
    beginnings = [text[:length] for length in range(len(text), -1, -1)]
    at_tokens = [beginning for beginning in beginnings if text[len(beginning) :].startswith(tuple(tokens))]
    whole = [tail] if text.startswith(tail) else []
    return list(dict.fromkeys([*whole, *(at_tokens if tokens else []), *beginnings]))


def _probe_chats(form: ChatForm) -> Iterator[list[Turn]]:
    for roles in PROBE_CHATS:
        if form.system is not None or "system" not in roles:
            for text in PROBE_TEXTS:
                yield _turns(roles, [f"{number} {text}" for number, _ in enumerate(roles)])


def _turns(roles: Sequence[str], texts: Sequence[str]) -> list[Turn]:
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def _reproduces(form: ChatForm, template: ChatTemplate, chat: list[Turn], *, refusal_counts: bool = True) -> bool:
    """Return whether form and template render the same; `refusal_counts` if the template refuses the chat."""
    text = _render(template, chat, prompt=True)
    return refusal_counts if text is None else text == form.render(chat)


def _render(template: ChatTemplate, chat: list[Turn], *, prompt: bool) -> str | None:
    try:
        return template.render(chat, add_generation_prompt=prompt).text
    except InvalidRequest:
        return None


def _texts_around(template: ChatTemplate, roles: Sequence[str]) -> list[str] | None:
    """Return the strings before, between and after the contents of a chat; None if it is refused, or a content is not
    rendered unchanged.
    """
    rest = _render(template, _turns(roles, MARKS), prompt=True)
    between = []
    for mark in MARKS[: len(roles)]:
        if rest is None or rest.count(mark) != 1:
            return None
        before, _, rest = rest.partition(mark)
        between.append(before)
    return [*between, rest or ""]


def _tail(template: ChatTemplate, roles: Sequence[str]) -> str:
    """Return the end of a chat whose last turn is of the last role."""
    return (_render(template, _turns(roles, MARKS), prompt=False) or "").rpartition(MARKS[len(roles) - 1])[2]


def _unsupported(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.OLLAMA_TEMPLATE_UNSUPPORTED,
        f"The base's chat template cannot be converted to an Ollama template: {reason}.",
        remedy=(
            "Serve the adapter with vLLM (--handoff vllm), which uses the base's own template; or write the "
            "Modelfile by hand."
        ),
        param="chat_template",
    )
