"""Refusals in one sentence: the field of the request to which they refer. The messages are vLLM 0.32.0's; the last
tests check that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from api.inference.vllm_messages import explain_sentence
from shared.errors import Code

CHAT = {"messages": [], "n": 2, "stop": ""}
LONG = "The decoder prompt (length 9) is longer than the maximum model length of 8."


@pytest.mark.parametrize(
    ("text", "body", "param"),
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
def test_sentence_names_its_field(text: str, body: dict[str, Any], param: str | None) -> None:
    error = explain_sentence(text, None, body)
    assert (error.message, error.param, error.code) == (text, param, Code.REQUEST_REJECTED)


def test_field_that_vllm_names_is_used() -> None:
    assert explain_sentence("n is wrong.", "tool_choice", CHAT).param == "tool_choice"


@pytest.mark.parametrize(
    ("vllms", "body", "param"),
    [
        ("max_tokens", {"max_output_tokens": -1}, "max_output_tokens"),
        ("max_tokens", {"max_tokens": 5, "max_completion_tokens": -1}, "max_completion_tokens"),
        ("max_tokens", {"max_tokens": -1}, "max_tokens"),
        ("logprobs", {"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ("logprobs", {"logprobs": 99}, "logprobs"),
    ],
)
def test_setting_has_the_name_that_the_caller_used(vllms: str, body: dict[str, Any], param: str) -> None:
    error = explain_sentence(f"{vllms} must be otherwise.", vllms, body)
    assert (error.message, error.param) == (f"{param} must be otherwise.", param)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n is 9. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", "n is 9."),
        (f"{LONG} Make sure that `max_model_len` is no smaller than the number of text tokens.", LONG),
        ("n is 9. Set max_logprobs (--max-logprobs) to at least 5.", "n is 9."),
        ("n is 9. Set it to 5.", "n is 9. Set it to 5."),
    ],
)
def test_advice_to_the_operator_is_cut_out(text: str, message: str) -> None:
    assert explain_sentence(text, None, CHAT).message == message


def test_known_sentences_have_a_remedy() -> None:
    assert "temperature" in explain_sentence("n must be 1 when using greedy sampling, got 2.", None, CHAT).remedy
    assert "text only" in explain_sentence("tiny is not a multimodal model", None, CHAT).remedy
    assert not explain_sentence("n must be at least 1, got 0.", None, CHAT).remedy


@pytest.mark.torch
def test_installed_vllm_writes_these_sentences_for_long_prompts() -> None:
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
        error = explain_sentence(refused.value.args[0], refused.value.parameter, {"prompt": "xx"})
        assert (error.code, error.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "prompt")
        assert "max_model_len" not in error.message
    with pytest.raises(refusal) as refused:
        processor._validate_prompt_len(engine, 0, "decoder")
    error = explain_sentence(str(refused.value), None, {"prompt": ""})
    assert (error.code, error.param) == (Code.REQUEST_REJECTED, "prompt")


@pytest.mark.torch
def test_installed_vllm_writes_these_sentences_for_unsuitable_fields() -> None:
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
    body = {"messages": [], "logprobs": True, "top_logprobs": 99, "response_format": {}}

    def param(refuse: Callable[[], Any]) -> str | None:
        with pytest.raises((refusal, ValueError)) as refused:
            refuse()
        refusal_: Any = refused.value
        return explain_sentence(refusal_.args[0], getattr(refusal_, "parameter", None), body).param

    assert param(lambda: renderer.validate_token_ids(engine, [99])) == "messages"
    assert param(lambda: registry().create_processor(model)) == "messages"
    assert param(lambda: sampling.SamplingParams(logprobs=99)._validate_logprobs(model)) == "top_logprobs"
    for grammar in grammars:
        for schema in ({"type": "bogus"}, "x"):
            wrong = sampling.SamplingParams(structured_outputs=sampling.StructuredOutputsParams(json=schema))
            assert param(partial(grammar, wrong)) == "response_format"
