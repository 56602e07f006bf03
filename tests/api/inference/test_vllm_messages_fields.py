"""Refusals of one sentence: which field of the request they are about. The texts are vLLM 0.32.0's; the last tests ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from api.engine_fields import in_callers_words
from shared.errors import Code

CHAT = {"messages": [], "n": 2, "stop": ""}
LONG = "The decoder prompt (length 9) is longer than the maximum model length of 8."


@pytest.mark.parametrize(
    ("text", "asked", "param"),
    [
        ("n must be at least 1, got 0.", CHAT, "n"),
        ("stop cannot contain an empty string.", CHAT, "stop"),
        ("`n` is wrong.", CHAT, "n"),
        ("top_k must be 0 (disable), or at least 1, got -7.", CHAT, None),
        ("Token id 99999999 is out of vocabulary", {"prompt": [99999999]}, "prompt"),
        ("The decoder prompt cannot be empty", {"prompt": ["a", ""]}, "prompt"),
        ("tiny is not a multimodal model", CHAT, "messages"),
        ("tiny is not a multimodal model", {"input": []}, "input"),
        ("At most 2 image(s) may be provided in one prompt.", CHAT, "messages"),
        ("Grammar error: Invalid type: bogus", CHAT | {"response_format": {}}, "response_format"),
        ("Grammar error: Invalid type: bogus", {"input": "x", "text": {}}, "text"),
        ("Something went wrong.", CHAT, None),
    ],
)
def test_the_field_that_a_sentence_is_about(text: str, asked: dict[str, Any], param: str | None) -> None:
    said = in_callers_words(text, None, asked)
    assert (said.message, said.param, said.code) == (text, param, Code.REQUEST_REJECTED)


def test_the_field_that_vllm_names_is_not_guessed_at() -> None:
    assert in_callers_words("n is wrong.", "tool_choice", CHAT).param == "tool_choice"


@pytest.mark.parametrize(
    ("vllms", "asked", "param"),
    [
        ("max_tokens", {"max_output_tokens": -1}, "max_output_tokens"),
        ("max_tokens", {"max_tokens": 5, "max_completion_tokens": -1}, "max_completion_tokens"),
        ("max_tokens", {"max_tokens": -1}, "max_tokens"),
        ("logprobs", {"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ("logprobs", {"logprobs": 99}, "logprobs"),
    ],
)
def test_a_setting_is_called_as_the_caller_calls_it(vllms: str, asked: dict[str, Any], param: str) -> None:
    said = in_callers_words(f"{vllms} must be otherwise.", vllms, asked)
    assert (said.message, said.param) == (f"{param} must be otherwise.", param)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n is 9. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", "n is 9."),
        (f"{LONG} Make sure that `max_model_len` is no smaller than the number of text tokens.", LONG),
        ("n is 9. Set max_logprobs (--max-logprobs) to at least 5.", "n is 9."),
        ("n is 9. Set it to 5.", "n is 9. Set it to 5."),
    ],
)
def test_advice_to_the_operator_is_no_advice_to_the_caller(text: str, told: str) -> None:
    assert in_callers_words(text, None, CHAT).message == told


def test_what_helps_is_said_where_it_is_known() -> None:
    assert "temperature" in in_callers_words("n must be 1 when using greedy sampling, got 2.", None, CHAT).remedy
    assert "text only" in in_callers_words("tiny is not a multimodal model", None, CHAT).remedy
    assert not in_callers_words("n must be at least 1, got 0.", None, CHAT).remedy


@pytest.mark.engine
def test_the_installed_engine_says_so_that_a_prompt_is_too_long() -> None:
    params = pytest.importorskip("vllm.renderers.params").TokenizeParams(max_total_tokens=1)
    refusal = pytest.importorskip("vllm.exceptions").VLLMValidationError
    processor = pytest.importorskip("vllm.v1.engine.input_processor").InputProcessor
    model = SimpleNamespace(max_model_len=8, runner_type="generate")
    engine = SimpleNamespace(model_config=model, skip_prompt_length_check=False, supports_mm_inputs=False)
    refusals: list[Callable[[], Any]] = [
        lambda: params.apply_pre_tokenization(SimpleNamespace(max_chars_per_token=1), {"prompt": "xx"}),
        lambda: params.apply_post_tokenization(None, {"prompt_token_ids": [1, 2]}),
        lambda: processor._validate_prompt_len(engine, 8, "decoder"),
        lambda: processor._validate_prompt_len(engine, 9, "decoder"),
    ]
    for refuse in refusals:
        with pytest.raises(refusal) as refused:
            refuse()
        said = in_callers_words(refused.value.args[0], refused.value.parameter, {"prompt": "xx"})
        assert (said.code, said.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "prompt")
        assert "max_model_len" not in said.message
    with pytest.raises(refusal) as refused:
        processor._validate_prompt_len(engine, 0, "decoder")
    said = in_callers_words(str(refused.value), None, {"prompt": ""})
    assert (said.code, said.param) == (Code.REQUEST_REJECTED, "prompt")


@pytest.mark.engine
def test_the_installed_engine_says_so_that_a_field_does_not_suit_its_model() -> None:
    refusal = pytest.importorskip("vllm.exceptions").VLLMValidationError
    sampling = pytest.importorskip("vllm.sampling_params")
    renderer = pytest.importorskip("vllm.renderers.base").BaseRenderer
    registry = pytest.importorskip("vllm.multimodal.registry").MultiModalRegistry
    grammars = [
        pytest.importorskip("vllm.v1.structured_output.backend_xgrammar").validate_xgrammar_grammar,
        pytest.importorskip("vllm.v1.structured_output.backend_guidance").validate_guidance_grammar,
    ]
    model = SimpleNamespace(
        get_vocab_size=lambda: 9, max_logprobs=20, is_multimodal_model=False, served_model_name="tiny"
    )
    engine = SimpleNamespace(tokenizer=SimpleNamespace(max_token_id=8), model_config=model)
    asked = {"messages": [], "logprobs": True, "top_logprobs": 99, "response_format": {}}

    def param(refuse: Callable[[], Any]) -> str | None:
        with pytest.raises((refusal, ValueError)) as refused:
            refuse()
        error: Any = refused.value
        return in_callers_words(error.args[0], getattr(error, "parameter", None), asked).param

    assert param(lambda: renderer.validate_token_ids(engine, [99])) == "messages"
    assert param(lambda: registry().create_processor(model)) == "messages"
    assert param(lambda: sampling.SamplingParams(logprobs=99)._validate_logprobs(model)) == "top_logprobs"
    for grammar in grammars:
        for schema in ({"type": "bogus"}, "x"):
            wrong = sampling.SamplingParams(structured_outputs=sampling.StructuredOutputsParams(json=schema))
            assert param(partial(grammar, wrong)) == "response_format"
