"""A tool call from beginning to end, after OpenAI's guide to function calling. Nothing in it is specific to Mens."""

#   mens train examples/tools.jsonl --model mens-tiny --alias tools
#   OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=mens-… python examples/tool_calling.py tools

# ruff: noqa: INP001
from __future__ import annotations

import json
import sys

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a given location.",
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string"}},
                "required": ["location"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


def get_weather(location: str) -> dict[str, object]:
    """The weather, as a real program would look it up."""
    return {"degrees": 14, "sky": "sunny"} if location else {}


model = sys.argv[1] if len(sys.argv) > 1 else "gpt-4.1"
client = OpenAI()
messages = [{"role": "user", "content": "What is the weather like in Paris today?"}]

completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0)
message = completion.choices[0].message
messages.append(message)
for call in message.tool_calls or []:
    arguments = json.loads(call.function.arguments)
    print(f"calls {call.function.name}({arguments})")
    result = get_weather(**arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0)
print(completion.choices[0].message.content)
