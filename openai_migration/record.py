"""Sends prompts to tuned models, and to their bases as a control, and keeps the answers: the only step that costs
money.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from openai_migration.archive.folder import (
    Archive,
    ArchiveEntry,
    file_name,
    make_private,
    now,
    request_key,
    safe_name,
    write_private,
)
from openai_migration.archive.openai_client import OpenAIClient
from openai_migration.archive.pages import NOT_JSON
from openai_migration.archive.shutdown_dates import parse_name
from openai_migration.prompts import Prompt, PromptChoice
from shared.counted_nouns import counted
from shared.hashing import digest_json

CHARACTERS_PER_TOKEN = 4
SEED = 1337
GREEDY = {"temperature": 0, "seed": SEED}
WITH_LOGPROBS = {"logprobs": True, "top_logprobs": 5}
GOLDEN = "golden"
GONE = ("model_not_found", "model_not_available", "deployment_not_found")


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """One request: one sample of a prompt from a model."""

    model: str
    prompt: Prompt
    sample: int
    body: dict[str, Any]

    @property
    def query(self) -> dict[str, str]:
        """The key of the question in the archive."""
        return {"request": digest_json(self.body), "sample": str(self.sample)}

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling settings of the answer; requests to a successor use the same."""
        return {name: self.body[name] for name in ("temperature", "seed", "max_completion_tokens")}


@dataclass(frozen=True, slots=True)
class RecordedSampling:
    """Sampling settings of the requests.

    Attributes:
        samples: number of answers at ``temperature``, in addition to the one at temperature 0.
        max_answer_tokens: longest answer, in tokens.
        control: whether the base answers too.
    """

    samples: int = 0
    temperature: float = 1.0
    max_answer_tokens: int = 2048
    control: bool = True


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The requests for a tuned model of a project."""

    project: str
    model: str
    choice: PromptChoice
    questions: list[RecordedQuestion]


@dataclass(slots=True)
class Recording:
    """Outcome of a recording run.

    Attributes:
        repeated: number of questions that already had an answer.
        tokens: OpenAI's token count of prompts and answers.
        stopped: why it ended early; empty if it did not.
        gone: models that OpenAI no longer serves.
    """

    answered: int = 0
    repeated: int = 0
    refused: int = 0
    tokens: int = 0
    stopped: str = ""
    gone: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Describe the outcome in one line."""
        phrases = [
            f"{counted(self.answered, 'answer')}, {counted(self.tokens, 'token')}",
            f"{self.repeated} recorded earlier",
            f"{self.refused} refused",
        ]
        phrases += [f"gone: {', '.join(self.gone)}"] if self.gone else []
        return "; ".join(phrases + ([self.stopped] if self.stopped else []))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a run; None means unlimited."""

    requests: int | None = None
    tokens: int | None = None

    def reached(self, done: Recording) -> str:
        """Return the name of the bound that is reached; empty if none is."""
        if self.requests is not None and done.answered + done.refused >= self.requests:
            return "--max-requests is reached"
        if self.tokens is not None and done.tokens >= self.tokens:
            return "--max-tokens is reached"
        return ""

    def after(self, done: Recording) -> Bounds:
        """Return the remaining bounds."""
        requests = None if self.requests is None else self.requests - done.answered - done.refused
        return Bounds(requests, None if self.tokens is None else self.tokens - done.tokens)


@dataclass(frozen=True, slots=True)
class RecordingEstimate:
    """Upper bound on the cost of the requests that are still to be sent. Prompt tokens are estimated at 4 characters
    each.
    """

    requests: int
    prompt_tokens: int
    answer_tokens: int


def questions(model: str, choice: PromptChoice, sampling: RecordedSampling) -> Iterator[RecordedQuestion]:
    """Yield the requests for a model, prompt by prompt: model and base, at temperature 0 and then the samples."""
    models = [model, parse_name(model).base] if sampling.control else [model]
    for prompt in choice.prompts:
        for name in models:
            for sample in range(1 + sampling.samples):
                how = GREEDY if sample == 0 else {"temperature": sampling.temperature, "seed": SEED + sample}
                bound = {"max_completion_tokens": sampling.max_answer_tokens}
                yield RecordedQuestion(
                    name,
                    prompt,
                    sample,
                    {"model": name, **prompt.request, **how, **bound, **WITH_LOGPROBS},
                )


def sum_estimates(archive: Archive, plans: list[ModelPlan]) -> RecordingEstimate:
    """Return the cost of the questions that the archive has no answer to."""
    left = [
        question for plan in plans for question in plan.questions if not archive.find(key_of(plan.project, question))
    ]
    characters = sum(len(msgspec.json.encode(question.prompt.request)) for question in left)
    bounds = sum(question.body["max_completion_tokens"] for question in left)
    return RecordingEstimate(len(left), characters // CHARACTERS_PER_TOKEN, bounds)


def describe_plans(
    plans: list[ModelPlan], cost: RecordingEstimate, price_in: float | None, price_out: float | None
) -> Iterator[str]:
    """Describe the requests to be sent and their cost. Prices are the user's own, per million tokens."""
    for plan in plans:
        sources = Counter(prompt.source for prompt in plan.choice.prompts)
        of_sources = ", ".join(f"{count} {source}" for source, count in sources.items()) or "none"
        left_out = ", ".join(f"{count} {reason}" for reason, count in plan.choice.left_out.items()) or "none"
        yield f"{plan.model}: {counted(len(plan.choice.prompts), 'prompt')} ({of_sources}); left out: {left_out}"
        yield from (f"  note: {note}" for note in plan.choice.notes)
    tokens = f"about {cost.prompt_tokens:,} prompt tokens, at most {cost.answer_tokens:,} answer tokens"
    yield f"{cost.requests} requests will be sent: {tokens}"
    if price_in is not None and price_out is not None:
        price = (cost.prompt_tokens * price_in + cost.answer_tokens * price_out) / 1_000_000
        yield f"at your prices, at most about {price:,.2f}"


def key_of(project: str, question: RecordedQuestion) -> str:
    """Return a question's key in the archive."""
    return request_key(project, "POST", "chat/completions", question.query)


def record_answers(
    client: OpenAIClient,
    archive: Archive,
    plans: list[ModelPlan],
    bounds: Bounds,
    done: Recording,
    advance: Callable[[str], None] = lambda _: None,
) -> None:
    """Send the questions that have no answer yet, until a bound is reached. A model that is gone does not stop the
    others.

    Args:
        done: updated as requests are sent, so that it shows the cost even if this function raises.
    """
    for question in (question for plan in plans for question in plan.questions):
        advance(question.model)
        if archive.find(key_of(client.project, question)):
            done.repeated += 1
        elif question.model not in done.gone:
            if reached := bounds.reached(done):
                done.stopped = reached
                break
            entry = _ask(client, archive, question)
            if entry.is_refused:
                done.refused += 1
                done.gone += [question.model] if entry.code in GONE or entry.status == 404 else []
            else:
                done.answered += 1
                done.tokens += _tokens(archive, entry)


def _ask(client: OpenAIClient, archive: Archive, question: RecordedQuestion) -> ArchiveEntry:
    with archive.body() as body:
        reply = client.send("POST", "chat/completions", body, body=question.body)
        if reply.status == 400 and "logprobs" in reply.message:
            plain = {name: value for name, value in question.body.items() if name not in WITH_LOGPROBS}
            reply = client.send("POST", "chat/completions", body, body=plain)
        query = question.query
        entry = ArchiveEntry(
            client.project,
            "POST",
            "chat/completions",
            query,
            reply.status,
            now(),
            code=reply.code,
            message=reply.message,
        )
        if reply.status != 200:
            return archive.add(entry, None)
        if not _is_completion(body):
            return archive.add(msgspec.structs.replace(entry, code=NOT_JSON), None)
        name = f"{query['request'][:32]}-{question.sample}.json"
        return archive.add(
            msgspec.structs.replace(entry, file=file_name(client.project, "answers", question.model, name)), body
        )


def _is_completion(body: BinaryIO) -> bool:
    body.seek(0)
    try:
        return bool(msgspec.json.decode(body.read())["choices"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return False


def _tokens(archive: Archive, entry: ArchiveEntry) -> int:
    usage = msgspec.json.decode((archive.folder / entry.file).read_bytes()).get("usage") or {}
    return int(usage.get("total_tokens") or 0)


def write_golden(archive: Archive, plan: ModelPlan) -> int:
    """Write ``golden/PROJECT/MODEL.jsonl``, one line per prompt with the archive's answers; return the number of lines.

    A line is {id, source, request, model, answers: [{model, sample, sampling, file, sha256, response}]}. Answers of
    earlier runs are kept: a run without ``--samples`` does not remove samples.
    """
    path = archive.folder / golden_file(plan.project, plan.model)
    lines = _golden_lines(path)
    for question in plan.questions:
        if entry := archive.find(key_of(plan.project, question)):
            line = lines.setdefault(
                question.prompt.id, {**msgspec.to_builtins(question.prompt), "model": plan.model, "answers": []}
            )
            answer = {
                "model": question.model,
                "sample": question.sample,
                "sampling": question.sampling,
                "file": entry.file,
                "sha256": entry.sha256,
                "response": msgspec.json.decode((archive.folder / entry.file).read_bytes()),
            }
            line["answers"] = [earlier for earlier in line["answers"] if not _is_same(earlier, answer)] + [answer]
    make_private(path.parent, archive.folder)
    write_private(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines.values()))
    return len(lines)


def _golden_lines(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return {line["id"]: line for line in map(msgspec.json.decode, lines)}


def _is_same(answer: dict[str, Any], other: dict[str, Any]) -> bool:
    return (answer["model"], answer["sample"]) == (other["model"], other["sample"])


def golden_file(project: str, model: str) -> str:
    """Return the path of a model's recorded answers in the archive."""
    return f"{GOLDEN}/{safe_name(project)}/{safe_name(model)}.jsonl"
