"""vLLM's responses in OpenAI's shape: fields that OpenAI leaves out are removed, required ones are added. Pure.

Most need no JSON parser: inside a JSON string a quote is escaped, so these beginnings of fields never occur inside one.
A response of the Responses API repeats JSON that the caller wrote, such as schemas, and that stays unchanged.
"""

from __future__ import annotations

import msgspec

from api.inference.event_stream import DATA, EVENT_END

ABSENT = tuple(
    b',"%s":null' % name
    for name in (
        b"annotations",
        b"function_call",
        b"completion_tokens_details",
        b"system_fingerprint",
        # of a response's function calls
        b"async",
        b"caller",
        b"namespace",
    )
)
"""Fields that are a value or absent at OpenAI, never null."""
LOGPROBS_OF_TEXT = b'"type":"output_text","logprobs":null'
WITH_LOGPROBS = b'"type":"output_text","logprobs":[]'
LOGPROBS = b'"logprobs":{"content":'
WITH_REFUSAL = b'"logprobs":{"refusal":null,"content":'

OPTIONAL = frozenset(("text", "user"))
"""Fields of a response that are a value or absent at OpenAI, never null."""
OPTIONAL_OF_TOOL = frozenset(("allowed_callers", "async", "defer_loading", "description", "namespace", "output_schema"))
OPTIONAL_OF_FORMAT = frozenset(("description",))
OF_RESPONSES = "incomplete_details"
"""A field that every response has."""
NULL = msgspec.Raw(b"null")

Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(Fields)
_objects = msgspec.json.Decoder(list[Fields])


def in_openais_shape(content: bytes) -> bytes:
    """Return a whole completion, an item of a response, or a whole event with one of them in OpenAI's shape."""
    for field in ABSENT:
        content = content.replace(field, b"")
    return with_refusal(content).replace(LOGPROBS_OF_TEXT, WITH_LOGPROBS)


def with_refusal(content: bytes) -> bytes:
    """Return log-probabilities with null in the field for a refusal: vLLM never returns the field, but OpenAI requires
    it.
    """
    return content.replace(LOGPROBS, WITH_REFUSAL)


def response_in_openais_shape(content: bytes) -> bytes:
    """Return a complete Responses API body in OpenAI's shape; other bodies are returned unchanged."""
    try:
        fields = _fields.decode(content)
        return msgspec.json.encode(_response(fields)) if OF_RESPONSES in fields else content
    except msgspec.DecodeError:
        return content


def response_event_in_openais_shape(event: bytes) -> bytes:
    """Return a stream event that contains a complete response in OpenAI's shape; other events are unchanged."""
    name, data, content = event.partition(DATA)
    try:
        fields = _fields.decode(content)
    except msgspec.DecodeError:
        return event
    original = bytes(fields.get("response", NULL))
    shaped = response_in_openais_shape(original)
    if shaped is original:
        return event
    return name + data + msgspec.json.encode(fields | {"response": msgspec.Raw(shaped)}) + EVENT_END


def _response(fields: Fields) -> Fields:
    fields = {"error": NULL} | _without_nulls(fields, OPTIONAL)  # vLLM has no `error`: failures are refusals
    if "output" in fields:
        fields["output"] = msgspec.Raw(in_openais_shape(bytes(fields["output"])))
    if "tools" in fields:
        tools = [_without_nulls(tool, OPTIONAL_OF_TOOL) for tool in _objects.decode(fields["tools"])]
        fields["tools"] = msgspec.Raw(msgspec.json.encode(tools))
    if "text" in fields:
        text = _fields.decode(fields["text"])
        if text.get("format", NULL) != NULL:
            text_format = _without_nulls(_fields.decode(text["format"]), OPTIONAL_OF_FORMAT)
            text["format"] = msgspec.Raw(msgspec.json.encode(text_format))
        fields["text"] = msgspec.Raw(msgspec.json.encode(text))
    return fields


def _without_nulls(fields: Fields, optional: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if value != NULL or name not in optional}
