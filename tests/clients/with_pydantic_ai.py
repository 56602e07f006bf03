"""pydantic-ai's agents: plain answers, streams, tools that are executed, output by tool and by schema, errors,
responses.
"""

from __future__ import annotations

from conversation import (
    BASE,
    COLOURS,
    COUNT,
    COUNTED,
    KEY,
    LIMITED_KEY,
    MODEL,
    READ,
    RESULT,
    URL,
    WEATHER,
    Colour,
    raises,
)
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(name=MODEL, kind=OpenAIChatModel, key=KEY, **more):
    settings = {"temperature": 0, "max_tokens": 64}
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=URL, api_key=key, max_retries=0))
    return Agent(kind(name, provider=provider), model_settings=settings, **more)


def chat():
    assert agent().run_sync(COUNT).output == COUNTED
    assert agent(kind=OpenAIResponsesModel).run_sync(COUNT).output == COUNTED
    stream = agent().run_stream_sync(COUNT)
    assert list(stream.stream_text())[-1] == COUNTED


def tools():
    asked = []

    def get_weather(location: str) -> str:
        """Get the current weather in a given location."""
        asked.append(location)
        return RESULT

    assert agent(tools=[get_weather]).run_sync(WEATHER).output == READ
    assert asked == ["Paris"]


def structured_output():
    for output in (ToolOutput(Colour), NativeOutput(Colour)):
        assert agent(BASE, output_type=output).run_sync(COUNT).output.colour in COLOURS


def errors():
    for status, wrong in ((404, {"name": "nobody"}), (401, {"key": "mens-wrong"}), (429, {"key": LIMITED_KEY})):
        with raises(ModelHTTPError, f"status_code: {status}"):
            for _ in range(2):
                agent(**wrong).run_sync(COUNT)


for check in (chat, tools, structured_output, errors):
    check()
print("all is well")
