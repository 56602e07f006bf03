"""Sample answers: greedy answers of base and adapter to a few rows, from the token ids that a request would have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, StoppingCriteriaList

from shared.datasets.reader import line_stream
from shared.datasets.row_validation import parse_row
from shared.datasets.rows import TrainingRow
from shared.errors import InvalidRequest
from shared.model_card.evaluation_rows import SAMPLE_TOKENS, SamplePrompt, WrittenAnswer
from shared.model_card.general_questions import general_questions
from shared.tokenization.served_form import plain_messages, served_roles, served_tools, trained_turns
from shared.tokenization.tokenizer import Tokenizer
from worker.training.model.linear_attention import linear_layers
from worker.training.model.load import packs
from worker.training.trainer import TrainingContext

MAX_PROMPT_TOKENS = 1_024
MAX_CANDIDATES = 64
"""Largest number of rows that are searched for short enough prompts."""


Parse = Callable[[bytes, int], TrainingRow]
"""Reads a line of a data file, with its number."""


def read_prompts(
    path: Path,
    lines: Sequence[int],
    tokenizer: Tokenizer,
    count: int,
    limit: int = MAX_PROMPT_TOKENS,
    parse: Parse = parse_row,
) -> list[SamplePrompt]:
    """Return the first rows whose prompts are short enough, in the order of ``lines``.

    Args:
        path: the JSONL file with the rows.
        lines: 1-based; only the first ``MAX_CANDIDATES`` are tried.
        count: number of prompts.
        limit: largest number of tokens of a prompt.
        parse: reads a line as the training method does.
    """
    candidates = list(lines[:MAX_CANDIDATES])
    rows = _read_lines(path, set(candidates), parse)
    prompts: list[SamplePrompt] = []
    for line in candidates:
        if len(prompts) == count:
            break
        prompt = prompt_of(rows[line], tokenizer) if line in rows else None
        if prompt and 0 < len(prompt.ids) <= limit:
            prompts.append(prompt)
    return prompts


def prompt_of(row: TrainingRow, tokenizer: Tokenizer) -> SamplePrompt | None:
    """Return the row's chat up to its last supervised answer; None if the template does not accept that part of the
    chat alone.
    """
    answers = [at for at, turn in enumerate(row.messages) if turn.role == "assistant" and turn.weight != 0]
    if not answers or not answers[-1]:
        return None
    tools = served_tools(row.tools)
    turns = served_roles(
        trained_turns(row.messages[: answers[-1] + 1], tokenizer.options.thoughts), tokenizer.template_for(tools).text
    )
    messages = plain_messages(turns)
    try:
        text = tokenizer.render(messages[:-1], tools, add_generation_prompt=True).text
        whole = tokenizer.render(messages, tools).text
    except InvalidRequest:
        return None
    answer = row.messages[answers[-1]].content or ""
    reference = whole[len(text) :] if whole.startswith(text) else answer
    if tokenizer.end_token:
        reference = reference.rstrip().removesuffix(tokenizer.end_token)
    before = turns[-2]
    return SamplePrompt(
        line=row.line,
        role=before.role,
        text=before.content or "",
        turns=len(turns) - 1,
        ids=tokenizer.encode(text).ids,
        reference=reference.strip(),
        system=next((turn.content for turn in turns if turn.role in ("system", "developer")), None) or None,
    )


def general_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return token ids of the general questions, as a request would send them; none if the template does not accept a
    plain chat.
    """
    try:
        texts = [
            tokenizer.render([{"role": "user", "content": general.question}], None, add_generation_prompt=True).text
            for general in general_questions()
        ]
    except InvalidRequest:
        return []
    return [tokenizer.encode(text).ids for text in texts]


def answer_both(
    context: TrainingContext,
    prompts: Sequence[Sequence[int]],
    end_ids: frozenset[int],
    check: Callable[[], None],
    new_tokens: int = SAMPLE_TOKENS,
) -> tuple[list[WrittenAnswer], list[WrittenAnswer]]:
    """Return answers of base and adapter to the prompts.

    Args:
        end_ids: tokens that end an answer.
        check: called between tokens; raises when a stop was requested.
    """
    with context.model.disable_adapter():
        base = generate(context, prompts, end_ids, check, new_tokens)
    tuned = generate(context, prompts, end_ids, check, new_tokens)
    old, new = ([_decode(context.tokenizer, ids, end_ids) for ids in answers] for answers in (base, tuned))
    return old, new


@torch.no_grad()
def generate(
    context: TrainingContext,
    prompts: Sequence[Sequence[int]],
    end_ids: frozenset[int],
    check: Callable[[], None],
    new_tokens: int = SAMPLE_TOKENS,
) -> list[list[int]]:
    """Return greedy answers to token ids, each up to and including its first end token.

    If every layer attends, the prompts share their passes, padded on the left; a recurrent layer would carry padding
    along, so each prompt then runs alone. If several processes share the base, they all stop together.
    """
    pad = int(context.tokenizer.pad_token_id or 0)
    ends = [] if context.budget.shard_base else sorted(end_ids)
    settings = GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends or None, pad_token_id=pad, use_cache=True
    )

    def stop_here(ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        check()  # never ends generation; it may raise
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    together = packs(context.model) and not linear_layers(context.model)
    groups = [list(prompts)] if together else [[prompt] for prompt in prompts]
    answers: list[list[int]] = []
    context.model.eval()
    with _ordinary_attention(context):
        for group in groups:
            longest = max(map(len, group))
            ids = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in group]
            mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in group]
            generated = context.model.generate(
                input_ids=torch.tensor(ids, device=context.device),
                attention_mask=torch.tensor(mask, device=context.device),
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([stop_here]),
            )
            answers += [_until_end(row, end_ids) for row in generated[:, longest:].tolist()]
    return answers


@contextmanager
def _ordinary_attention(context: TrainingContext) -> Iterator[None]:
    """Use transformers' own attention, which masks padded prompts; ours is for rows with known boundaries."""
    model: Any = context.model.get_base_model()
    before = model.config._attn_implementation  # noqa: SLF001  # where transformers keeps it
    if packs(context.model):
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        if model.config._attn_implementation != before:  # noqa: SLF001
            model.set_attn_implementation(before)


def _until_end(ids: list[int], end_ids: frozenset[int]) -> list[int]:
    for at, token in enumerate(ids):
        if token in end_ids:
            return ids[: at + 1]
    return ids


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int], end_ids: frozenset[int]) -> WrittenAnswer:
    """Decode an answer as the serving tier writes it, without special tokens and the end token."""
    ended = bool(ids) and ids[-1] in end_ids
    return WrittenAnswer(str(tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)).strip(), ended)


def _read_lines(path: Path, numbers: set[int], parse: Parse) -> dict[int, TrainingRow]:
    last = max(numbers, default=0)
    rows = {}
    with path.open("rb") as file:
        for number, line in enumerate(line_stream(file), start=1):
            if number in numbers:
                rows[number] = parse(line, number)
            if number >= last:
                break
    return rows
