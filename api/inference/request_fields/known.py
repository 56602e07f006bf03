"""The fields that a model request may have: OpenAI's and vLLM's. A field that would be ignored is refused.

vLLM accepts any field and ignores those that it does not know, so a misspelt name would be answered as if it were absent.
`tests/api/inference/request_fields/test_known.py` compares the lists with the installed vLLM and OpenAI's client.
"""

from __future__ import annotations

import difflib
from typing import Any

from shared.errors import Code, Forbidden, InvalidRequest

_SAMPLING = frozenset(
    [
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "length_penalty",
        "logit_bias",
        "logprob_token_ids",
        "logprobs",
        "max_tokens",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_detection",
        "repetition_penalty",
        "response_format",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "structured_outputs",
        "temperature",
        "thinking_token_budget",
        "top_k",
        "top_p",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_beam_search",
        "watermarking",
    ]
)
_DELIVERY = frozenset(
    [
        "add_special_tokens",
        "cache_salt",
        "echo",
        "ec_transfer_params",
        "kv_transfer_params",
        "mm_payload",
        "model",
        "priority",
        "request_id",
        "return_mm_kwargs",
        "return_token_ids",
        "return_token_offsets",
        "return_tokens_as_token_ids",
        "routed_experts_prompt_start",
        "session_id",
        "stream",
        "stream_interval",
        "stream_options",
        "user",
        "vllm_xargs",
    ]
)
CHAT = (
    _SAMPLING
    | _DELIVERY
    | frozenset(
        [
            "add_generation_prompt",
            "chat_template",
            "chat_template_kwargs",
            "continue_final_message",
            "documents",
            "include_reasoning",
            "max_completion_tokens",
            "media_io_kwargs",
            "messages",
            "mm_processor_kwargs",
            "parallel_tool_calls",
            "reasoning_effort",
            "return_prompt_text",
            "tool_choice",
            "tools",
            "top_logprobs",
        ]
    )
)
COMPLETION = _SAMPLING | _DELIVERY | frozenset(("prompt", "prompt_embeds", "suffix"))
RESPONSE = frozenset(
    [
        "background",
        "cache_salt",
        "chat_template_kwargs",
        "ec_transfer_params",
        "enable_response_messages",
        "frequency_penalty",
        "ignore_eos",
        "include",
        "include_reasoning",
        "include_stop_str_in_output",
        "input",
        "instructions",
        "kv_transfer_params",
        "logit_bias",
        "max_output_tokens",
        "max_tool_calls",
        "media_io_kwargs",
        "metadata",
        "min_p",
        "mm_payload",
        "mm_processor_kwargs",
        "model",
        "parallel_tool_calls",
        "presence_penalty",
        "previous_input_messages",
        "previous_response_id",
        "priority",
        "prompt",
        "prompt_cache_key",
        "reasoning",
        "repetition_penalty",
        "request_id",
        "return_mm_kwargs",
        "seed",
        "service_tier",
        "session_id",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "store",
        "stream",
        "structured_outputs",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "vllm_xargs",
        "watermarking",
    ]
)

WITHOUT_EFFECT = frozenset(
    [
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
    ]
)
"""OpenAI's fields that do not change an answer, at OpenAI or here: labels, and hints that only make an answer faster.
"""
_RENDERED: dict[str, tuple[Any, ...]] = {
    "mm_payload": (None, "tensors"),
    "return_mm_kwargs": (None, True),
    "return_token_offsets": (None, False),
}
"""Fields that vLLM reads when it renders a prompt without an answer, which no route here does."""
ONLY: dict[str, tuple[Any, ...]] = _RENDERED | {
    "audio": (None,),
    "best_of": (None, 1),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "service_tier": (None, "auto", "default"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Fields that are not served, and their values that are accepted because they have no effect."""
CHAT_OPENAI = (WITHOUT_EFFECT | ONLY.keys() | {"store", "functions", "function_call"}) - CHAT - {"best_of"}
COMPLETION_OPENAI = frozenset({"best_of"})
ONLY_RESPONSE: dict[str, tuple[Any, ...]] = _RENDERED | {
    "access_programs": (None,),
    "context_management": (None, []),
    "image": (None,),
    "moderation": (None,),
    "service_tier": (None, "auto", "default"),
}
RESPONSE_OPENAI = (WITHOUT_EFFECT | ONLY_RESPONSE.keys() | {"conversation", "stream_options"}) - RESPONSE
INSTEAD = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_decoding_backend": "structured_outputs",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
}
"""Fields of earlier releases of vLLM, and their current names."""


TOKEN_IDS = (
    "return_token_ids",
    "return_tokens_as_token_ids",
    "prompt_logprobs",
    "logprob_token_ids",
    "enable_response_messages",
)
"""Fields that add token ids to the answer."""


def refuse_token_ids(body: dict[str, Any]) -> None:
    """Refuse token ids in an answer to a caller who may not read them, as from ``/v1/tokenize``.

    Raises:
        Forbidden: ``ROLE_INSUFFICIENT``.
    """
    for name in TOKEN_IDS:
        value = body.get(name)
        if (
            value is not None and value is not False and value != []
        ):  # `prompt_logprobs: 0` returns the prompt's own token ids
            raise Forbidden(
                Code.ROLE_INSUFFICIENT,
                f"`{name}` returns token ids, which need the role trainer.",
                remedy="Leave it out, or ask an admin of the tenant for such a key.",
                param=name,
            )


def check_chat_fields(body: dict[str, Any]) -> None:
    """Refuse fields that a chat completion does not have or support.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``, ``RESPONSE_NOT_STORED``.
    """
    _check(body, CHAT, CHAT_OPENAI, ONLY)
    if body.get("store"):
        raise InvalidRequest(
            Code.RESPONSE_NOT_STORED,
            "`store` is not supported: Mens does not store completions.",
            remedy="Leave `store` out, or set it to false.",
            param="store",
        )


def check_completion_fields(body: dict[str, Any]) -> None:
    """Refuse fields that a completion does not have or support.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``.
    """
    _check(body, COMPLETION, COMPLETION_OPENAI, ONLY)


def check_response_fields(body: dict[str, Any]) -> None:
    """Refuse fields that a response does not have or support.

    Raises:
        InvalidRequest: ``FIELD_UNKNOWN``, ``FIELD_UNSUPPORTED``.
    """
    _check(body, RESPONSE, RESPONSE_OPENAI, ONLY_RESPONSE)


def _check(
    body: dict[str, Any], names: frozenset[str], openai: frozenset[str], only: dict[str, tuple[Any, ...]]
) -> None:
    """Refuse the first field that is neither known nor without effect."""
    for name, value in body.items():
        if name not in names and name not in openai:
            raise unknown_field(name, names | openai)
        if name in only and value not in only[name]:
            raise unsupported_field(name, only[name])


def unknown_field(name: str, names: frozenset[str], parent: str = "") -> InvalidRequest:
    """Return the refusal of an unknown field.

    Args:
        name: the field as the caller wrote it.
        names: the known fields.
        parent: path of the containing object, with a trailing dot.
    """
    similar = difflib.get_close_matches(name[:100], names, 1)
    instead = INSTEAD.get(name) or (parent + similar[0] if similar else None)
    path = parent + name[:100]
    return InvalidRequest(
        Code.FIELD_UNKNOWN,
        f"The field `{path}` does not exist.",
        remedy=f"Use `{instead}`." if instead else "Leave it out.",
        param=path,
    )


def unsupported_field(path: str, only: tuple[Any, ...]) -> InvalidRequest:
    """Return the refusal of a field whose value requests an unsupported feature.

    Args:
        path: path of the field.
        only: values that are accepted because they have no effect.
    """
    values = " or ".join(f"`{value!r}`" for value in only if value is not None)
    return InvalidRequest(
        Code.FIELD_UNSUPPORTED,
        f"`{path}` requests something that is not supported here.",
        remedy="Leave it out" + (f", or set it to {values}." if values else "."),
        param=path,
    )
