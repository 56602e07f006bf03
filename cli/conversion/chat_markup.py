"""Divides a string into turns at its chat markup: a template once wrote the string, and this recovers the turns.

No part of the string is lost: if a part is neither a turn nor a mark of the family, the string counts as unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cli.conversion.outcomes import Row
from shared.datasets.forms.recognition import ROLES

_SPECIAL = re.compile(r"<s>|</s>|<\|begin_of_text\|>|<\|endoftext\|>|<\|end_of_text\|>|<bos>|<eos>")
_LLAMA2 = re.compile(r"\[INST\](.*?)\[/INST\](.*?)(?=(?:<s>\s*)?\[INST\]|\Z)", re.DOTALL)
_LLAMA2_SYSTEM = re.compile(r"\s*<<SYS>>\s*(.*?)\s*<</SYS>>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Markup:
    """A family of templates in which a header begins each turn.

    Attributes:
        header: names the speaker in its group.
        end: ends a turn; None if the next header does.
        preamble: whether content before the first header is a system turn.
    """

    header: re.Pattern[str]
    end: re.Pattern[str] | None = None
    preamble: bool = False


_FAMILIES = (
    _Markup(re.compile(r"<\|im_start\|>[ ]*(\w+)[ ]*\n"), re.compile(r"<\|im_end\|>")),
    _Markup(re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>"), re.compile(r"<\|eot_id\|>|<\|eom_id\|>")),
    _Markup(re.compile(r"<start_of_turn>(\w+)\n"), re.compile(r"<end_of_turn>")),
    _Markup(re.compile(r"<\|(system|user|assistant)\|>"), re.compile(r"</s>|<\|end\|>|<\|endoftext\|>")),
    _Markup(re.compile(r"(?:\A|(?<=\n))### ?(Human|User|Assistant|System):?[ \n]"), preamble=True),
    _Markup(re.compile(r"(?:\A|(?<=\n))### ?(Instruction|Input|Response):[ \n]?"), preamble=True),
    _Markup(re.compile(r"(?:\A|(?<=\n))(Human|User|Assistant|System): ?")),
    _Markup(re.compile(r"(?:\A|(?<=[\s>]))(USER|ASSISTANT|SYSTEM): ?"), preamble=True),
)
_NAMES = ROLES | {"instruction": "user", "input": "input", "response": "assistant"}


def to_turns(text: str) -> list[Row] | None:
    """Return the turns of a string, with at least one user turn and one answer; None if it has no known markup."""
    for turns in _readings(text):
        roles = {turn["role"] for turn in turns}
        if {"user", "assistant"} <= roles:
            return turns
    return None


def _readings(text: str) -> Iterator[list[Row]]:
    if "[/INST]" in text:
        yield _llama2(text)
    for family in _FAMILIES:
        if family.header.search(text):
            yield _by_headers(text, family)


def _by_headers(text: str, family: _Markup) -> list[Row]:
    """Return the turns of a string; an empty list if a part of it would be lost."""
    headers = list(family.header.finditer(text))
    before = _bare(text[: headers[0].start()])
    if before and not family.preamble:
        return []
    turns: list[Row] = [{"role": "system", "content": before}] if before else []
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=True):
        role = _NAMES.get(header[1].lower())
        content, *rest = (
            family.end.split(text[header.end() : end], maxsplit=1) if family.end else [text[header.end() : end]]
        )
        content = _bare(content)
        if role is None or any(map(_bare, rest)):
            return []
        if role == "input":  # Alpaca: a part of the question
            if not (turns and turns[-1]["role"] == "user"):
                return []
            turns[-1]["content"] += f"\n{content}"
        else:
            turns.append({"role": role, "content": content})
    return turns


def _llama2(text: str) -> list[Row]:
    if _bare(_LLAMA2.sub("", text)):
        return []
    turns: list[Row] = []
    for question, answer in _LLAMA2.findall(text):
        prompt = question
        if not turns and (system := _LLAMA2_SYSTEM.match(question)):
            turns.append({"role": "system", "content": system[1]})
            prompt = question[system.end() :]
        turns += [{"role": "user", "content": prompt.strip()}, {"role": "assistant", "content": _bare(answer)}]
    return turns


def _bare(text: str) -> str:
    """Return a string without white space and special tokens at its ends."""
    text = text.strip()
    while (match := _SPECIAL.match(text)) is not None:
        text = text[match.end() :].strip()
    while text.endswith(">") and (ending := next((e for e in _endings(text) if text.endswith(e)), "")):
        text = text.removesuffix(ending).strip()
    return text


def _endings(text: str) -> Iterator[str]:
    return (match[0] for match in _SPECIAL.finditer(text))
