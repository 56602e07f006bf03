"""Chooses the prompts for a tuned model before it is shut down: none that it was trained on, and the same ones in every
run.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.sections import url_path
from shared.datasets.conversation_text import digest64
from shared.hashing import digest_json

if TYPE_CHECKING:
    from shared.datasets.duplicates import SketchedRows

PROMPT_FIELDS = ("tools", "functions", "response_format", "parallel_tool_calls", "tool_choice")
"""Fields of a request, in addition to its messages, that affect the answer and that rows, chats and batches contain."""
NOT_SENT = ("weight", "refusal", "annotations", "audio", "id")
TYPICAL_ROW_BYTES = 200
ROWS_AT_ONCE = 2_000
SET_ASIDE = 10
"""If only training rows are available, one in this many is sent as a prompt and not trained on again."""

Request = dict[str, Any]


class Prompt(msgspec.Struct, frozen=True):
    """One prompt.

    Attributes:
        id: digest of the request.
        source: ``yours``, ``validation``, ``eval``, ``chat``, ``batch``, ``imported``, or ``training`` if no other
            prompts existed.
        request: a chat request without model and sampling.
    """

    id: str
    source: str
    request: Request


class PromptChoice(msgspec.Struct, frozen=True):
    """The prompts of a model.

    Attributes:
        left_out: number of prompts left out, by reason.
        notes: notes for a reader of the comparison.
    """

    prompts: list[Prompt]
    left_out: dict[str, int]
    notes: list[str]


def choose_prompts(
    contents: ArchiveContents,
    project: str,
    model: str,
    *,
    limit: int,
    own: Path | None = None,
    trained: Iterable[Path] = (),
) -> PromptChoice:
    """Choose the prompts for a model: the user's own first, then the others in an order that depends only on them.

    Args:
        limit: largest number of prompts.
        own: a file of the user's prompts, in any row format.
        trained: training files that the archive does not have.
    """
    jobs = [job for job in contents.jobs(project) if model_of(model) == job.get("fine_tuned_model")]
    files = [contents.file(project, str(job["training_file"])) for job in jobs if job.get("training_file")]
    training_files = [*trained, *(path for path in files if path)]
    seen = TrainedPrompts(training_files)
    left_out: Counter[str] = Counter()
    chosen: dict[str, Prompt] = {}
    for source, request in _candidates(contents, project, model, jobs, own):
        reason = seen.reason(request["messages"])
        prompt = Prompt(digest_json(request), source, request)
        if reason or prompt.id in chosen:
            left_out[reason or "twice"] += 1
        else:
            chosen[prompt.id] = prompt
    notes = []
    if not training_files:
        notes.append(
            "the training file is missing, so these may include prompts that the model was trained on: --trained FILE"
        )
    if not chosen:
        chosen = {prompt.id: prompt for path in training_files for prompt in _set_aside(path)}
        if chosen:
            notes.append("these are training rows, which favour the old model; do not train the successor on them")
    ordered = sorted(chosen.values(), key=lambda prompt: (prompt.source != "yours", prompt.id))
    if ordered[limit:]:
        left_out[f"over the limit of {limit}"] = len(ordered) - limit
    return PromptChoice(ordered[:limit], dict(left_out), notes)


def model_of(name: str) -> str:
    """Return the model that a checkpoint's name belongs to; return any other name unchanged."""
    return name.partition(":ckpt-step-")[0]


def file_requests(path: Path, model: str = "") -> Iterator[Request]:
    """Yield the prompts of a JSONL file's rows; lines that are not chat rows are skipped.

    Args:
        model: only requests to this model, if a row names its model.
    """
    with path.open("rb") as lines:
        for line in lines:
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(row, dict) and _is_for(row, model) and (request := to_request(row)):
                yield request


def _is_for(row: dict[str, Any], model: str) -> bool:
    body = row.get("body")
    return not model or not isinstance(body, dict) or body.get("model") in {None, model}


def to_request(row: dict[str, Any]) -> Request | None:
    """Return the prompt of a row, chat or batch line: its messages up to the last answer, and its tools and format."""
    body = row.get("body") or row.get("input") or row
    if not isinstance(body, dict):
        return None
    messages = body.get("messages")
    if not messages and isinstance(body.get("prompt"), str):
        messages = [{"role": "user", "content": body["prompt"]}]
    if not (isinstance(messages, list) and all(isinstance(message, dict) for message in messages)):
        return None
    while messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    sent = [
        {name: value for name, value in message.items() if name not in NOT_SENT and value is not None}
        for message in messages
    ]
    more = {name: body[name] for name in PROMPT_FIELDS if body.get(name)}
    return {"messages": sent, **more} if sent else None


def spoken(messages: Iterable[dict[str, Any]]) -> str:
    """Return the string by which prompts are compared: the turns without the system content, which all rows of a file
    may share.
    """
    turns = (f"<{m.get('role')}> {_text(m)}" for m in messages if m.get("role") not in {"system", "developer"})
    return " ".join(" ".join(turns).lower().split())


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode() if content else ""
    return text + (msgspec.json.encode(message["tool_calls"]).decode() if message.get("tool_calls") else "")


class TrainedPrompts:
    """The prompts of training files, for exact and near matches."""

    def __init__(self, files: Iterable[Path]) -> None:
        from shared.datasets.duplicates import NearIndex  # numpy is slow to import

        paths = list(files)
        self._exact: set[int] = set()
        self._near = NearIndex(sum(path.stat().st_size for path in paths) // TYPICAL_ROW_BYTES)
        texts = (spoken(request["messages"]) for path in paths for request in file_requests(path))
        while batch := list(islice(texts, ROWS_AT_ONCE)):
            rows = _sketched(batch)
            self._exact.update(rows.digests)
            self._near.find_and_add(rows)

    def reason(self, messages: list[dict[str, Any]]) -> str:
        """Return why a prompt is left out; empty if it is used."""
        row = _sketched([spoken(messages)])
        if row.digests[0] in self._exact:
            return "trained on"
        return "nearly trained on" if len(self._near.find(row)) else ""


def _sketched(texts: list[str]) -> SketchedRows:
    from shared.datasets.duplicates import SketchedRows
    from shared.datasets.fingerprints import fingerprints

    digests, sketches = fingerprints(texts)
    return SketchedRows(bytearray(sketches), array("Q", digests), array("I", range(len(texts))))


def _set_aside(path: Path) -> Iterator[Prompt]:
    for request in file_requests(path):
        if digest64(spoken(request["messages"])) % SET_ASIDE == 0:
            yield Prompt(digest_json(request), "training", request)


def _candidates(
    contents: ArchiveContents, project: str, model: str, jobs: list[dict[str, Any]], own: Path | None
) -> Iterator[tuple[str, Request]]:
    if own:
        yield from (("yours", request) for request in file_requests(own))
    for job in jobs:
        if path := contents.file(project, str(job.get("validation_file"))):
            yield from (("validation", request) for request in file_requests(path))
    for chat in contents.items(project, "chat/completions", model=model):
        turns = contents.items(project, url_path("chat", "completions", str(chat["id"]), "messages"))
        if request := to_request({**chat, "messages": list(turns)}):
            yield "chat", request
    yield from (("eval", request) for request in _eval_requests(contents, project))
    for _, file in contents.files(project, "batch"):
        # The batches of a project may be for any of its models.
        yield from (("batch", request) for request in file_requests(file, model))


def _eval_requests(contents: ArchiveContents, project: str) -> Iterator[Request]:
    for evaluation in contents.items(project, "evals"):
        runs = url_path("evals", str(evaluation["id"]), "runs")
        for run in contents.items(project, runs):
            for item in contents.items(project, f"{runs}/{url_path(str(run['id']), 'output_items')}"):
                if request := sampled_request(item):
                    yield request


def sampled_request(output: dict[str, Any]) -> Request | None:
    """Return the prompt of an eval's output item; None if it has none."""
    sample = output.get("sample") or {}
    return to_request({name: sample.get(name) for name in PROMPT_FIELDS} | {"messages": sample.get("input")})
