"""vLLM's responses in OpenAI's shape: a field that OpenAI leaves out is left out, one that it requires is there. Pure.

No JSON parser is needed: inside a JSON string a quote is escaped, so these beginnings of fields are never inside one.
"""

from __future__ import annotations

ABSENT = tuple(
    b',"%s":null' % name
    for name in (
        b"annotations",
        b"function_call",
        b"completion_tokens_details",
        b"system_fingerprint",
        b"text",
        b"user",
        # of a response's function calls, tools and formats
        b"allowed_callers",
        b"async",
        b"caller",
        b"defer_loading",
        b"description",
        b"namespace",
        b"output_schema",
    )
)
"""Fields that are a value or absent at OpenAI, never null."""
REPLACED = (
    (b',"incomplete_details":', b',"error":null,"incomplete_details":'),  # vLLM has no `error`; a failed one is refused
    (b'"type":"output_text","logprobs":null', b'"type":"output_text","logprobs":[]'),
)
LOGPROBS = b'"logprobs":{"content":'
WITH_REFUSAL = b'"logprobs":{"refusal":null,"content":'
ERROR = b'"error":null'


def in_openais_shape(content: bytes) -> bytes:
    """A whole response, or a whole event of a stream."""
    for field in ABSENT:
        content = content.replace(field, b"")
    content = with_refusal(content)
    if ERROR not in content:
        for vllms, openais in REPLACED:
            content = content.replace(vllms, openais)
    return content


def with_refusal(content: bytes) -> bytes:
    """Log-probabilities with those of a refusal, which vLLM never makes: OpenAI's are null then, and required."""
    return content.replace(LOGPROBS, WITH_REFUSAL)
