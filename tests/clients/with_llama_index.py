"""LlamaIndex's ``OpenAILike``: chats, streams, completions, tools, structured prediction, errors."""

from typing import Literal

import openai
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
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def get_weather(location: str) -> str:
    """Get the current weather in a given location."""
    return RESULT


def paint(colour: Literal["red", "green"]) -> str:
    """Paint in a colour."""
    return colour


def model(name=MODEL, **more):
    given = {"api_base": URL, "api_key": KEY, "temperature": 0, "max_tokens": 64, "max_retries": 0, "timeout": 60}
    able = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 1024}
    return OpenAILike(model=name, **given | able | more)


def chat():
    turns = [ChatMessage(role="user", content=COUNT)]
    assert model().chat(turns).message.content == COUNTED
    assert "".join(part.delta or "" for part in model().stream_chat(turns)) == COUNTED
    prompt = f"<|im_start|>user\n{COUNT}<|im_end|>\n<|im_start|>assistant\n"
    assert model(is_chat_model=False).complete(prompt).text == COUNTED


def tools():
    weather = FunctionTool.from_defaults(get_weather, description=get_weather.__doc__)
    answer = model().chat_with_tools([weather], user_msg=WEATHER)
    (call,) = model().get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"location": "Paris"})
    result = ChatMessage(role="tool", content=RESULT, additional_kwargs={"tool_call_id": call.tool_id})
    turns = [ChatMessage(role="user", content=WEATHER), answer.message, result]
    assert model().chat_with_tools([weather], chat_history=turns).message.content == READ
    forced = model(BASE).chat_with_tools([FunctionTool.from_defaults(paint)], user_msg=COUNT, tool_required=True)
    (call,) = model().get_tool_calls_from_response(forced)
    assert (call.tool_name, call.tool_kwargs["colour"] in COLOURS) == ("paint", True)


def structured_output():
    answer = model(BASE).structured_predict(Colour, PromptTemplate(COUNT))
    assert answer.colour in COLOURS


def errors():
    turns = [ChatMessage(role="user", content=COUNT)]
    with raises(openai.NotFoundError, "nobody"):
        model("nobody").chat(turns)
    with raises(openai.AuthenticationError):
        model(api_key="mens-wrong").chat(turns)
    with raises(openai.RateLimitError):
        for _ in range(2):
            model(api_key=LIMITED_KEY).chat(turns)


for check in (chat, tools, structured_output, errors):
    check()
print("all is well")
