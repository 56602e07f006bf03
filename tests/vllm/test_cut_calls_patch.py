"""A forced call that `max_tokens` or the end of the context truncates: the complete response has the same content as
its stream, with each parser that a replica may choose.
"""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from shared.tokenization.tool_call_forms import FORMS
from tests.support.tool_calls import CALLS, NAMED, parser_named, request_of

pytest.importorskip("vllm")

VALUES = ('[1, {"x": "two three"}, "é日本"]', '"a long text with \\"quotes\\", {braces} and 😀"', "7", "[]")
END = "<end>"
PARSERS = sorted({form.parser for form in FORMS})


@pytest.fixture(scope="module", autouse=True)
def patched() -> None:
    from serving.vllm_cut_calls_patch import apply_patch

    for _ in range(2):
        apply_patch()


def _of_bytes(made: Any, tokenizers: Any) -> Any:
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return {"initial_alphabet": tokenizers.pre_tokenizers.ByteLevel.alphabet(), "vocab_size": 330}


def _of_sentencepiece(made: Any, tokenizers: Any) -> Any:
    """As Llama 2 and Mistral have: each word begins with a mark, and the space at a text's beginning is left out."""
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    decoders = tokenizers.decoders
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    return {"vocab_size": 120}


@pytest.fixture(scope="module", params=[_of_bytes, _of_sentencepiece], ids=["bytes", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """One with tokens of several letters and those that the parsers need."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(show_progress=False, **request.param(made, tokenizers))
    made.train_from_iterator([call % value for call in CALLS.values() for value in VALUES], trainer)
    made.add_special_tokens([END, "<tool_call>", "</tool_call>", *(form.token for form in FORMS if form.token)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


Found = tuple[str, list[tuple[str, str]]]


def whole(parser: Any, text: str, tokens: list[int], request: Any) -> Found:
    _, content, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=tokens)
    return content or "", [(call.name, call.arguments) for call in calls or ()]


def stream(parser: Any, pieces: list[tuple[str, int]], request: Any) -> Found:
    content, calls = "", {}
    for index, (text, token) in enumerate(pieces, start=1):
        delta = parser.parse_delta(text, [token], request, [], finished=index == len(pieces))
        content += (delta and delta.content) or ""
        for part in delta.tool_calls if delta else ():
            name, arguments = calls.get(part.index, ("", ""))
            calls[part.index] = name + (part.function.name or ""), arguments + (part.function.arguments or "")
    return content, [calls[index] for index in sorted(calls)]


def cut(tokenizer: Any, tokens: list[int]) -> list[tuple[str, int]]:
    """The tokens with the texts that vLLM's detokenizer gives, whose letters may come with a later token."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    sampling = SamplingParams(skip_special_tokens=False)
    request: Any = SimpleNamespace(request_id="r", sampling_params=sampling, prompt_token_ids=[5, 6])
    detokenizer = FastIncrementalDetokenizer(tokenizer, request)
    return [(detokenizer.decode_next(token), token) for token in tokens]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("name", PARSERS)
def test_cut_call_is_the_same_in_both(tokenizer: Any, name: str, choice: Any) -> None:
    parser, request = parser_named(name), request_of("chat", choice)
    for value in VALUES:
        tokens, seen = tokenizer.encode(CALLS[name] % value), dict[str, list[str]]()
        for end in range(1, len(tokens)):
            pieces = cut(tokenizer, tokens[:end])
            text = "".join(letters for letters, _ in pieces)
            found = whole(parser(tokenizer, request.tools), text, tokens[:end], request)
            assert not (found[0].strip() and found[1]), "no markup beside a call"
            streamed = stream(parser(tokenizer, request.tools), pieces, request)
            if all(is_json(arguments) for _, arguments in streamed[1]) and streamed[1]:
                assert [(called, json.loads(arguments)) for called, arguments in found[1]] == [
                    (called, json.loads(arguments)) for called, arguments in streamed[1]
                ], text  # vLLM writes the spaces of whole calls in its own way
            else:
                assert found == streamed, text
            for called, arguments in found[1]:
                seen.setdefault(called, []).append(arguments)
        if name == "llama3_json" and text.startswith(" "):
            assert not seen, "its parser of streams reads only what begins with a brace, as Llama 3's tokens do"
        else:
            assert set(seen) == {"f"}
            assert len(seen["f"]) > 1


def is_json(text: str) -> bool:
    with suppress(ValueError):
        json.loads(text)
        return True
    return False


@pytest.mark.parametrize("name", ["hermes", "llama3_json"])
def test_text_that_its_tokens_do_not_give_is_read_by_letters(tokenizer: Any, name: str) -> None:
    parser, request = parser_named(name), request_of("chat", "required")
    text = (CALLS[name] % VALUES[1]).partition("braces")[0]
    content, [(called, arguments)] = whole(parser(tokenizer, request.tools), text, [0], request)
    assert (content.strip(), called) == ("", "f")
    assert "a long text" in arguments


def test_answer_that_is_not_a_forced_call_stays(tokenizer: Any) -> None:
    parser = parser_named("hermes")
    request = request_of("chat", "auto")
    assert whole(parser(tokenizer, request.tools), "It is 7.", [], request) == ("It is 7.", [])
    forced = request_of("chat", "required")
    whole_call = CALLS["hermes"] % '{"x":1}'
    assert whole(parser(tokenizer, forced.tools), whole_call, [], forced) == ("", [("f", '{"c": {"x": 1}}')])


def test_answer_with_an_end_token_is_read_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving import vllm_cut_calls_patch

    read, parser = [], parser_named("hermes")
    monkeypatch.setattr(vllm_cut_calls_patch, "read_as_stream", lambda *_: read.append(1) or (None, None))
    text = CALLS["hermes"] % "7"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for sent, times in (([*tokens, tokenizer.eos_token_id], 0), (tokens, 1)):
        request = request_of("chat", "required")
        assert whole(parser(tokenizer, request.tools), text, sent, request) == ("", [("f", '{"c": 7}')])
        assert len(read) == times


def test_pieces_keep_the_space_after_the_prompt(tokenizer: Any) -> None:
    from serving.vllm_cut_calls_patch import pieces_of

    tokens = tokenizer.encode(" two three", add_special_tokens=False)
    pieces = cut(tokenizer, tokens)
    text = "".join(letters for letters, _ in pieces)
    assert text.startswith(" ")
    found = pieces_of(tokenizer, tokens, text, text)
    assert found is not None
    assert [piece.text for piece in found] == [letters for letters, _ in pieces]


def test_long_answers_are_read_in_few_pieces() -> None:
    from serving.vllm_cut_calls_patch import MOST_PIECES, CallPiece, joined

    for length in (0, 1, MOST_PIECES, MOST_PIECES + 1, 1000):
        pieces = [CallPiece(str(number), (number,)) for number in range(length)]
        found = list(joined(pieces))
        assert len(found) <= MOST_PIECES
        assert "".join(piece.text for piece in found) == "".join(piece.text for piece in pieces)
        assert [token for piece in found for token in piece.tokens] == list(range(length))


def test_answer_that_the_stream_parser_cannot_read_is_vllms(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving import vllm_cut_calls_patch

    def fail(*_arguments: Any) -> None:
        raise KeyError("state")

    monkeypatch.setattr(vllm_cut_calls_patch, "streamed", fail)
    parser, request = parser_named("hermes"), request_of("chat", "required")
    text = (CALLS["hermes"] % VALUES[1]).partition("braces")[0]
    tokens = tokenizer.encode(text)
    assert whole(parser(tokenizer, request.tools), text, tokens, request)[1] == []
