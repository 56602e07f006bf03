"""Patch vLLM so that a complete response returns a truncated forced tool call as a call, as a stream does.

A streamed response contains the function's name and the arguments so far, as OpenAI's does. In the complete response to
the same request, vLLM (0.32) returns an empty list of calls with the markup of the call as content, or a call without
the truncated argument. This patch parses such an answer again, piece by piece, with the parser for streams.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from tokenizers.decoders import DecodeStream
from vllm.entrypoints.generate.base.protocol import FunctionCall
from vllm.parser.abstract_parser import DelegatingParser

logger = logging.getLogger(__name__)

MOST_PIECES = 32
"""Largest number of pieces. For each piece, a parser for streams reads all arguments so far again, and other requests
wait meanwhile.
"""


class CallPiece(NamedTuple):
    """Text of some consecutive tokens of an answer."""

    text: str
    tokens: tuple[int, ...] = (0,)


def apply_patch() -> None:
    """Make vLLM parse truncated calls in complete responses, in this process. Idempotent."""
    parse = DelegatingParser.parse
    if getattr(parse, "reads_cut_calls", False):
        return

    def parse_with_cut_call(
        parser: Any,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        reasoning, content, calls = parse(parser, model_output, request, enable_auto_tools, model_output_token_ids)
        if parser.tool_parser_cls is None or not is_forced(request.tool_choice):
            return reasoning, content, calls
        if calls and has_ended(parser.model_tokenizer, request, model_output_token_ids):
            return reasoning, content, calls
        try:
            before, calls_as_streamed = read_as_stream(parser, model_output, request, model_output_token_ids)
        except Exception:
            # vLLM's parsers can raise errors of any class for unexpected model output.
            logger.exception("a streamed answer with a forced call could not be parsed; vLLM's own parse of it is sent")
            return reasoning, content, calls
        if calls_as_streamed is None or (
            calls
            and len(calls) == len(calls_as_streamed)
            and all(is_json(call.arguments) for call in calls_as_streamed)
        ):
            return reasoning, content, calls
        return reasoning, before, calls_as_streamed

    parse_with_cut_call.reads_cut_calls = True  # type: ignore[attr-defined]
    DelegatingParser.parse = parse_with_cut_call


def read_as_stream(
    parser: Any, output: str, request: Any, tokens: Sequence[int]
) -> tuple[str | None, list[FunctionCall] | None]:
    """Return the content and the calls of an answer as its stream would return them. The calls are None if the parser
    needs tokens and the text cannot be split into them.
    """
    _, written = type(parser)(parser.model_tokenizer, request.tools).extract_reasoning(output, request)
    pieces = pieces_of(parser.model_tokenizer, tokens, output, written or "")
    if pieces is None:
        if parser.tool_parser_cls.engine_based_streaming:
            return None, None
        pieces = [CallPiece(letter) for letter in written or ""]
    return streamed(type(parser)(parser.model_tokenizer, request.tools), list(joined(pieces)), request)


def is_forced(choice: Any) -> bool:
    """Return whether a tool choice forces a call: of any function, or of a named one."""
    return choice == "required" or not isinstance(choice, str | None)


def has_ended(tokenizer: Any, request: Any, tokens: Sequence[int]) -> bool:
    """Return whether an answer ends with an end token, and is therefore complete. The request's limits do not show
    this, because the end of the context also truncates an answer. If an answer ends with an end token that is unknown
    here, it is only parsed again, with the same result.
    """
    # Read from vars(), because only one of vLLM's two kinds of requests has this attribute.
    stops = vars(request).get("stop_token_ids") or ()
    return bool(tokens) and tokens[-1] in (tokenizer.eos_token_id, *stops)


def is_json(text: str) -> bool:
    """Return whether a text is a complete JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def pieces_of(tokenizer: Any, tokens: Sequence[int], output: str, content: str) -> list[CallPiece] | None:
    """Return an answer's content split into the texts of its tokens, as its stream sends it; None if these texts do not
    add up to the content.

    Args:
        tokenizer: the model's tokenizer.
        tokens: number of tokens of the whole output.
        output: the text of these tokens.
        content: the part of the output after its reasoning.
    """
    # vLLM decodes an answer as the continuation of its prompt. So SentencePiece's decoders keep a leading space, which
    # they drop at the beginning of a text.
    prompt = tokenizer._tokenizer.encode("a", add_special_tokens=False).ids  # noqa: SLF001
    for before, skips_special in product((prompt, []), (False, True)):
        pieces = list(_decoded(tokenizer, before, tokens, skips_special))
        if content and output.endswith(content) and "".join(piece.text for piece in pieces) == output:
            return list(_last_letters(pieces, len(content)))
    return None


def _decoded(tokenizer: Any, before: list[int], tokens: Sequence[int], skips_special: bool) -> Iterator[CallPiece]:
    stream = DecodeStream(ids=before, skip_special_tokens=skips_special)
    for token in tokens:
        yield CallPiece(stream.step(tokenizer._tokenizer, token) or "", (token,))  # noqa: SLF001


def _last_letters(pieces: Sequence[CallPiece], letters: int) -> Iterator[CallPiece]:
    left_out = sum(len(piece.text) for piece in pieces) - letters
    for piece in pieces:
        if len(piece.text) > left_out or (not piece.text and left_out <= 0):
            yield CallPiece(piece.text[max(left_out, 0) :], piece.tokens)
        left_out -= len(piece.text)


def joined(pieces: Sequence[CallPiece]) -> Iterator[CallPiece]:
    """Join adjacent pieces until at most `MOST_PIECES` are left."""
    size = -(-len(pieces) // MOST_PIECES)
    for start in range(0, len(pieces), size or 1):
        part = pieces[start : start + size]
        yield CallPiece("".join(piece.text for piece in part), tuple(token for piece in part for token in piece.tokens))


def streamed(parser: Any, pieces: Sequence[CallPiece], request: Any) -> tuple[str | None, list[FunctionCall]]:
    """Return the content and the calls of an answer without its reasoning, as a stream would return them.

    Args:
        parser: a new parser, because vLLM's parsers are stateful.
        pieces: the answer's pieces.
        request: the request that the answer belongs to.
    """
    state = parser._stream_state  # noqa: SLF001
    state.reasoning_ended = state.prompt_reasoning_checked = True
    content, calls = "", dict[int, FunctionCall]()
    for number, (text, tokens) in enumerate(pieces, start=1):
        delta = parser.parse_delta(text, list(tokens), request, finished=number == len(pieces))
        content += (delta and delta.content) or ""
        for part in delta.tool_calls if delta else ():
            call = calls.setdefault(part.index, FunctionCall(name="", arguments=""))
            call.name += (part.function and part.function.name) or ""
            call.arguments += (part.function and part.function.arguments) or ""
    return content or None, [calls[index] for index in sorted(calls)]
