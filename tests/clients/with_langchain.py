"""LangChain's ``ChatOpenAI``: chats, streams, tools and structured output by each of its methods, errors, responses."""

from __future__ import annotations

import openai
from conversation import (
    BASE,
    COLOURS,
    COUNT,
    COUNTED,
    GET_WEATHER,
    LIMITED_KEY,
    MODEL,
    PAINT,
    READ,
    RESULT,
    WEATHER,
    Colour,
    raises,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def model(name=MODEL, **more):
    return ChatOpenAI(model=name, **{"temperature": 0, "max_tokens": 64, "max_retries": 0} | more)


def chat():
    answer = model().invoke(COUNT)
    assert (answer.content, answer.response_metadata["finish_reason"]) == (COUNTED, "stop")
    chunks = list(model(stream_usage=True).stream(COUNT))
    assert "".join(chunk.content for chunk in chunks) == COUNTED
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["output_tokens"] for usage in counted] == [answer.usage_metadata["output_tokens"]]


def tools():
    able = model().bind_tools([GET_WEATHER])
    called = able.invoke(WEATHER)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"location": "Paris"})
    turns = [HumanMessage(WEATHER), called, ToolMessage(RESULT, tool_call_id=call["id"])]
    assert able.invoke(turns).content == READ
    streamed = None
    for chunk in able.stream(WEATHER):
        streamed = chunk if streamed is None else streamed + chunk
    assert [call["args"] for call in streamed.tool_calls] == [{"location": "Paris"}]
    for choice in ("any", "paint"):
        (call,) = model(BASE).bind_tools([PAINT], tool_choice=choice).invoke(COUNT).tool_calls
        assert (call["name"], call["args"]["colour"] in COLOURS) == ("paint", True)


def structured_output():
    for method in ("json_schema", "function_calling"):
        answer = model(BASE).with_structured_output(Colour, method=method).invoke(COUNT)
        assert answer.colour in COLOURS


def responses():
    answer = model(use_responses_api=True).invoke(COUNT)
    assert answer.text == COUNTED


def errors():
    with raises(openai.NotFoundError, "nobody"):
        model("nobody").invoke(COUNT)
    with raises(openai.AuthenticationError):
        model(api_key="mens-wrong").invoke(COUNT)
    with raises(openai.RateLimitError):
        for _ in range(2):
            model(api_key=LIMITED_KEY).invoke(COUNT)


for check in (chat, tools, structured_output, responses, errors):
    check()
print("all is well")
