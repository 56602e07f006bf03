"""Recorded answers, and other data of the archive about their prompts: the label of a validation row, the item of an
eval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from openai_migration.archive.contents import ArchiveContents
from openai_migration.golden import check_kept, decode_line
from openai_migration.prompts import model_of, to_request
from openai_migration.record import GOLDEN, GREEDY, golden_file
from shared.hashing import digest_json

DEFAULT_ANSWER_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """A model's answer.

    Attributes:
        text: its content; empty for an answer that only calls tools.
        finish_reason: OpenAI's ``finish_reason``; empty if it was missing.
    """

    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def spoken(self) -> str:
        """The answer as one string: its content, or its tool calls as JSON."""
        if self.text or not self.tool_calls:
            return self.text
        # Without the ids of calls, which are generated for every answer.
        return msgspec.json.encode([call.get("function") for call in self.tool_calls]).decode()


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """A prompt, and the answers of the tuned model and its base.

    Attributes:
        request: the sent request, without model and sampling.
        sampling: how the first answer was sampled.
        samples: repeated answers of the tuned model, at production temperature.
        control: the base's answer; None if the base got no request.
    """

    id: str
    source: str
    request: dict[str, Any]
    sampling: dict[str, Any]
    answer: GateAnswer
    samples: list[GateAnswer]
    control: GateAnswer | None


def answer_of(completion: dict[str, Any]) -> GateAnswer:
    """Return the answer in a chat completion; an empty one for other bodies. A legacy function call becomes one tool
    call.
    """
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    first_message = choice.get("message")
    message: dict[str, Any] = first_message if isinstance(first_message, dict) else {}
    text = message.get("content")
    return GateAnswer(text if isinstance(text, str) else "", calls_of(message), str(choice.get("finish_reason") or ""))


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tool calls of a message, including calls in the older ``function_call`` format."""
    if isinstance(message.get("tool_calls"), list):
        return [call for call in message["tool_calls"] if isinstance(call, dict)]
    legacy = message.get("function_call")
    return [{"type": "function", "function": legacy}] if isinstance(legacy, dict) else []


def recorded_models(folder: Path) -> dict[str, str]:
    """Return the tuned models with recorded answers, each with its project."""
    projects = {}
    for path in sorted((folder / GOLDEN).glob("*/*.jsonl")):
        if lines := path.read_bytes().splitlines():
            projects[decode_line(path, 1, lines[0]).model] = unquote(path.parent.name)
    return projects


def recorded_prompts(folder: Path, project: str, model: str) -> list[RecordedPrompt]:
    """Return the prompts that the tuned model answered."""
    path = folder / golden_file(project, model)
    prompts = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        line = decode_line(path, number, text)
        mine = sorted((answer for answer in line.answers if answer.model == model), key=lambda answer: answer.sample)
        if not mine or mine[0].sample != 0:
            continue
        control = [answer for answer in line.answers if answer.model != model and answer.sample == 0]
        for answer in (*mine, *control):
            check_kept(folder, f"{path}, line {number}", answer)
        prompts.append(
            RecordedPrompt(
                id=line.id,
                source=line.source,
                request=line.request,
                sampling=mine[0].sampling or {**GREEDY, "max_completion_tokens": DEFAULT_ANSWER_TOKENS},
                answer=answer_of(mine[0].response),
                samples=[answer_of(answer.response) for answer in mine[1:]],
                control=answer_of(control[0].response) if control else None,
            )
        )
    return prompts


def labels(contents: ArchiveContents, project: str, model: str) -> dict[str, GateAnswer]:
    """Return the answers in the rows of the model's validation files, by the prompt's id."""
    by_prompt: dict[str, GateAnswer] = {}
    for job in contents.jobs(project):
        path = contents.file(project, str(job.get("validation_file")))
        if path and job.get("fine_tuned_model") == model_of(model):
            by_prompt.update(_labels_of(path))
    return by_prompt


def _labels_of(path: Path) -> Iterator[tuple[str, GateAnswer]]:
    with path.open("rb") as lines:
        for line in lines:
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(row, dict) and (request := to_request(row)) and (label := _label(row)):
                yield digest_json(request), label


def _label(row: dict[str, Any]) -> GateAnswer | None:
    if isinstance(row.get("completion"), str):
        return GateAnswer(row["completion"])
    messages = row.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return None
    label = answer_of({"choices": [{"message": last}]})
    return label if label.spoken else None
