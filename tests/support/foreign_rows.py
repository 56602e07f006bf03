"""Rows of other programs, by form, as in their documentation, each with the chat that it means."""

from __future__ import annotations

import json
from typing import Any

from shared.datasets.forms.recognition import RowForm

Turns = list[dict[str, Any]]


def said(*texts: str, system: str = "") -> Turns:
    """Alternating turns of user and assistant."""
    turns: Turns = [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
    ]
    return [{"role": "system", "content": system}, *turns] if system else turns


HI = said("Hi", "Hello")
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": WEATHER}}
CALLED: Turns = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
        ],
    },
    {"role": "tool", "content": '{"rain":true}', "tool_call_id": "call_1"},
    {"role": "assistant", "content": "Yes."},
]
SHAREGPT_CALLS = [
    {"from": "human", "value": "Rain?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
    {"from": "observation", "value": '{"rain":true}'},
    {"from": "gpt", "value": "Yes."},
]
ANTHROPIC_CALLS: Turns = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": '{"rain":true}'}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
]
BEDROCK_CALLS: Turns = [
    {"role": "user", "content": [{"text": "Rain?"}]},
    {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Rome"}}}],
    },
    {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "call_1", "content": [{"json": {"rain": True}}], "status": "success"}}
        ],
    },
    {"role": "assistant", "content": [{"text": "Yes."}]},
]
GEMINI_CALLS: Turns = [
    {"role": "user", "parts": [{"text": "Rain?"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"city": "Rome"}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"rain": True}}}]},
    {"role": "model", "parts": [{"text": "Yes."}]},
]
CHATML = (
    "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
)
LLAMA3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe short.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
)
SHORT = said("Hi", "Hello", system="Be short.")
TWICE = said("Hi", "Hello", "Bye", "See you")

READABLE: list[tuple[RowForm, dict[str, Any], Turns]] = [
    (RowForm.SHAREGPT, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, HI),
    (
        RowForm.SHAREGPT,
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": "Be short."},
        SHORT,
    ),
    (RowForm.SHAREGPT, {"messages": [{"role": "human", "content": "Hi"}, {"role": "gpt", "content": "Hello"}]}, HI),
    (RowForm.SHAREGPT, {"conversation": [{"role": "user", "content": "Hi"}, {"role": "model", "text": "Hello"}]}, HI),
    (RowForm.SHAREGPT, {"conversations": SHAREGPT_CALLS, "tools": '[{"name": "weather", "description": "Weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]'}, CALLED),
    (RowForm.ALPACA, {"instruction": "Hi", "input": "", "output": "Hello"}, HI),
    (RowForm.ALPACA, {"instruction": "Sum", "input": "1 2", "output": "3", "system": "Be short."}, said("Sum\n1 2", "3", system="Be short.")),
    (RowForm.ALPACA, {"instruction": "Bye", "output": "See you", "history": [["Hi", "Hello"]]}, TWICE),
    (RowForm.QUESTION_ANSWER, {"question": "Hi", "answer": "Hello"}, HI),
    (RowForm.QUESTION_ANSWER, {"Question": "Hi", "Answer": "Hello"}, HI),
    (RowForm.QUESTION_ANSWER, {"query": "Hi", "response": "Hello"}, HI),
    (RowForm.QUESTION_ANSWER, {"input": "Hi", "output": "Hello"}, HI),
    (RowForm.QUESTION_ANSWER, {"question": "6 * 7?", "answer": 42}, said("6 * 7?", "42")),
    (RowForm.QUESTION_ANSWER, {"question": "Who?", "context": "Ann runs.", "answer": "Ann"}, said("Who?\nAnn runs.", "Ann")),
    (RowForm.PROMPT_COMPLETION, {"prompt": [HI[0]], "completion": [HI[1]]}, HI),
    (RowForm.PREFERENCE, {"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"}, HI),
    (RowForm.PREFERENCE, {"prompt": [HI[0]], "chosen": [HI[1]], "rejected": [HI[1]]}, HI),
    (RowForm.PREFERENCE, {"chosen": HI, "rejected": HI}, HI),
    (RowForm.PREFERENCE, {"prompt": "Hi", "chosen": HI, "rejected": HI}, HI),
    (RowForm.PREFERENCE, {"prompt": "Hi", "chosen": HI, "rejected": said("Hi", "No"), "messages": HI}, HI),
    (RowForm.PREFERENCE, {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"}, HI),
    (RowForm.PREFERENCE, {"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Hello"}, "rejected": {"from": "gpt", "value": "No"}}, HI),
    (RowForm.RANKING, {"instruction": "Hi", "models": ["a", "b", "c"], "completions": [{"response": "No", "overall_score": 9.0, "fine-grained_score": 1.5}, {"response": "Hello", "overall_score": 8.0, "fine-grained_score": 5}, {"response": "Ho", "fine-grained_score": "3"}]}, HI),
    (RowForm.RANKING, {"prompt": "Hi", "generations": ["No", "Hello"], "ratings": [1, 4]}, HI),
    (RowForm.KTO, {"prompt": "Hi", "completion": "Hello", "label": True}, HI),
    (RowForm.KTO, {"prompt": [HI[0]], "completion": [HI[1]], "label": True}, HI),
    (RowForm.GEMINI, {"systemInstruction": {"parts": [{"text": "Be short."}]}, "contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "Hel"}, {"text": "lo"}]}]}, SHORT),
    (RowForm.GEMINI, {"contents": GEMINI_CALLS, "tools": [{"functionDeclarations": [{"name": "weather", "description": "Weather", "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}}]}]}, CALLED),
    (RowForm.ANTHROPIC, {"messages": ANTHROPIC_CALLS, "tools": [{"name": "weather", "description": "Weather", "input_schema": WEATHER}]}, CALLED),
    (RowForm.ANTHROPIC, {"system": [{"type": "text", "text": "Be short."}], "messages": [HI[0], {"role": "assistant", "content": [{"type": "thinking", "thinking": "A greeting.", "signature": "s"}, {"type": "text", "text": "Hello"}]}]}, [*SHORT[:2], {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}]),
    (RowForm.BEDROCK, {"schemaVersion": "bedrock-conversation-2024", "system": [{"text": "Be short."}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": [{"text": "Hel"}, {"text": "lo"}]}]}, SHORT),
    (RowForm.BEDROCK, {"messages": BEDROCK_CALLS, "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "description": "Weather", "inputSchema": {"json": WEATHER}}}]}}, CALLED),
    (RowForm.BEDROCK, {"messages": [{"role": "user", "content": [{"text": "Hi"}, {"cachePoint": {"type": "default"}}]}, {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "A greeting."}}}, {"text": "Hello"}]}]}, [HI[0], {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}]),
    (RowForm.PROMPT_COMPLETION, {"input": [HI[0]], "output": HI[1]}, HI),
    (RowForm.PROMPT_COMPLETION, {"input": [HI[0]], "output": [{"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}]}, HI),
    (RowForm.PROMPT_COMPLETION, {"prompt": [HI[0]], "response": "Hello"}, HI),
    (RowForm.LOG, {"request": {"model": "m", "messages": [HI[0]]}, "response": {"id": "x", "choices": [{"index": 0, "message": HI[1] | {"refusal": None, "annotations": []}, "finish_reason": "stop"}]}}, HI),
    (RowForm.LOG, {"body": json.dumps({"messages": [HI[0]]}), "response": json.dumps({"choices": [{"message": {"content": "Hello"}}]})}, HI),
    (RowForm.PROMPT_COMPLETION, {"question": "raw", "answer": "42", "prompt": [HI[0]], "completion": [HI[1]]}, HI),
    (RowForm.QUESTION_ANSWER, {"question": "Who?", "context": "Ann runs.", "answer": "Ann", "user": {"role": "admin"}}, said("Who?\nAnn runs.", "Ann")),
    (RowForm.ALPACA, {"instruction": "Sum", "input": "1 2", "output": "3", "user": {"role": "user"}}, said("Sum\n1 2", "3")),
    (RowForm.PREFERENCE, {"prompt": [HI[0]], "chosen": [HI[1]], "rejected": said("", "No")[1:], "request": {"messages": [HI[0]]}, "response": {"choices": [{"message": {"role": "assistant", "content": "No"}}]}}, HI),
    (RowForm.GEMINI, {"system_instruction": "Be short.", "contents": [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "", "thought_signature": "x"}, {"text": "Hello"}]}]}, SHORT),
    (RowForm.BEDROCK, {"system": [{"text": "Be short."}, {"cachePoint": {"type": "default"}}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": [{"text": "Hello"}]}], "toolConfig": {"tools": [{"cachePoint": {"type": "default"}}]}}, SHORT),
    (RowForm.LOG, {"custom_id": "1", "body": {"messages": CALLED[:3], "tools": [TOOL]}, "response": {"status_code": 200, "body": {"choices": [{"message": CALLED[3]}]}}}, CALLED),
    (RowForm.TEXT, {"text": CHATML}, SHORT),
    (RowForm.TEXT, {"text": LLAMA3}, SHORT),
    (RowForm.TEXT, {"text": "<s>[INST] <<SYS>>\nBe short.\n<</SYS>>\n\nHi [/INST] Hello </s>"}, SHORT),
    (RowForm.TEXT, {"text": "<s>[INST] Hi [/INST] Hello</s><s>[INST] Bye [/INST] See you</s>"}, TWICE),
    (RowForm.TEXT, {"text": "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"}, HI),
    (RowForm.TEXT, {"text": "<|system|>\nBe short.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello</s>"}, SHORT),
    (RowForm.TEXT, {"text": "### Human: Hi\n### Assistant: Hello\n### Human: Bye\n### Assistant: See you"}, TWICE),
    (RowForm.TEXT, {"text": "Be short.\n\n### Instruction:\nSum\n\n### Input:\n1 2\n\n### Response:\n3"}, said("Sum\n1 2", "3", system="Be short.")),
    (RowForm.TEXT, {"text": "Be short. USER: Hi ASSISTANT: Hello</s>"}, SHORT),
]  # fmt: skip
"""Form, row, and the turns of the resulting chat."""

UNREADABLE: list[tuple[RowForm | None, dict[str, Any], str]] = [
    (RowForm.TEXT, {"text": "Once upon a time there was a fox."}, "text_without_turns"),
    (RowForm.TEXT, {"text": "<|im_start|>user\nHi<|im_end|>\n"}, "text_without_turns"),
    (RowForm.TEXT, {"text": "<|im_start|>user\nHi<|im_end|> lost <|im_start|>assistant\nHello<|im_end|>"}, "text_without_turns"),
    (RowForm.TEXT, {"text": "lost <|im_start|>user\nHi<|im_end|><|im_start|>assistant\nHello<|im_end|>"}, "text_without_turns"),
    (RowForm.TEXT, {"text": "[INST] Hi [/INST] Hello [INST] lost"}, "text_without_turns"),
    (RowForm.TEXT, {"text": "### Input:\nHi\n### Response:\nHello"}, "text_without_turns"),
    (RowForm.KTO, {"prompt": "Hi", "completion": "Go away", "label": False}, "label_false"),
    (RowForm.PREFERENCE, {"prompt": "Hi", "rejected": "No", "chosen": 5}, "ROW_FIELD_TYPE"),
    (RowForm.RANKING, {"prompt": "Hi", "responses": ["No", "Hello"], "scores": [2, 2.0]}, "no_answer_better"),
    (RowForm.RANKING, {"prompt": "Hi", "responses": ["No", "Hello", "Ho"], "scores": [2, "N/A", True]}, "ROW_FIELD_MISSING"),
    (RowForm.RANKING, {"prompt": "Hi", "completions": [{"response": "No", "score": 1}, {"response": "Ho", "rating": 2}]}, "ROW_FIELD_MISSING"),
    (RowForm.SHAREGPT, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "alien", "value": "Hello"}]}, "ROW_ROLE_UNKNOWN"),
    (RowForm.SHAREGPT, {"conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "A cat"}], "images": ["a.png"]}, "image"),
    (RowForm.SHAREGPT, {"conversations": [{"from": "human", "value": "Hi"}]}, "no_answer"),
    (RowForm.SHAREGPT, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "function_call", "value": "weather"}]}, "ROW_TOOL_CALL_INVALID"),
    (RowForm.SHAREGPT, {"conversations": [{"from": "system", "value": "A"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": "B"}, "ROW_FIELD_CONFLICT"),
    (RowForm.ALPACA, {"instruction": "Hi", "output": "Hello", "history": "earlier"}, "ROW_FIELD_TYPE"),
    (RowForm.QUESTION_ANSWER, {"question": "Hi", "answer": ["Hello"]}, "ROW_FIELD_TYPE"),
    (RowForm.QUESTION_ANSWER, {"question": "", "answer": "Hello"}, "ROW_FIELD_MISSING"),
    (RowForm.GEMINI, {"contents": [{"role": "user", "parts": [{"inlineData": {}}]}]}, "other_part"),
    (RowForm.LOG, {"request": {"messages": [HI[0]]}, "response": {"choices": [{"message": HI[1], "finish_reason": "length"}]}}, "answer_cut"),
    (RowForm.LOG, {"request": {"messages": [HI[0]]}, "response": None}, "no_answer"),
    (RowForm.LOG, {"request": {"messages": [HI[0]]}, "response": {"error": {"code": 429}}}, "no_answer"),
    (RowForm.LOG, {"request": {"messages": [1]}, "response": {"choices": [{"message": HI[1]}]}}, "ROW_FIELD_TYPE"),
    (RowForm.LOG, {"request": {"messages": []}, "response": {"choices": [{"message": HI[1]}]}}, "ROW_FIELD_MISSING"),
    (RowForm.BEDROCK, {"messages": [{"role": "user", "content": [{"text": "What?", "image": {"format": "png"}}]}, BEDROCK_CALLS[3]]}, "image"),
    (RowForm.BEDROCK, {"messages": [*BEDROCK_CALLS[:3], BEDROCK_CALLS[3] | {"reasoning_content": "So."}]}, "ROW_FIELD_CONFLICT"),
    (RowForm.GEMINI, {"contents": [{"role": "user", "parts": [{"text": "What?", "inlineData": {"mimeType": "image/png"}}]}, GEMINI_CALLS[3]]}, "other_part"),
    (RowForm.ANTHROPIC, {"messages": [*ANTHROPIC_CALLS[:3], ANTHROPIC_CALLS[3] | {"tool_calls": CALLED[1]["tool_calls"]}]}, "ROW_FIELD_CONFLICT"),
    (RowForm.LOG, {"request": {"messages": [HI[0]]}, "response": {"choices": [{}]}}, "ROW_FIELD_TYPE"),
    (RowForm.GEMINI, {"contents": [GEMINI_CALLS[0], *GEMINI_CALLS[2:]]}, "function_without_call"),
    (RowForm.GEMINI, {"contents": GEMINI_CALLS, "tools": [{"googleSearch": {}}]}, "ROW_TOOL_INVALID"),
    (RowForm.GEMINI, {"contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]}, "image"),
    (RowForm.ANTHROPIC, {"messages": [ANTHROPIC_CALLS[0], *ANTHROPIC_CALLS[2:]]}, "function_without_call"),
    (RowForm.ANTHROPIC, {"messages": [*ANTHROPIC_CALLS, {"role": "tool", "content": "1"}]}, "ROW_ROLE_UNKNOWN"),
    (RowForm.ANTHROPIC, {"messages": [*ANTHROPIC_CALLS[:2], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "image"}]}]}]}, "image"),
    (RowForm.ANTHROPIC, {"messages": [*ANTHROPIC_CALLS[:3], {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "other_part"),
    (RowForm.BEDROCK, {"messages": [{"role": "user", "content": [{"image": {"format": "png"}}]}, BEDROCK_CALLS[3]]}, "image"),
    (RowForm.BEDROCK, {"messages": [{"role": "user", "content": [{"document": {"name": "a"}}]}, BEDROCK_CALLS[3]]}, "other_part"),
    (RowForm.BEDROCK, {"messages": [BEDROCK_CALLS[0], {"role": "assistant", "content": [{"toolUse": {"name": "weather", "input": "Rome"}}]}]}, "ROW_TOOL_CALL_INVALID"),
    (RowForm.BEDROCK, {"messages": [BEDROCK_CALLS[2], BEDROCK_CALLS[3]]}, "function_without_call"),
    (None, {"title": "Hi", "body": "Hello"}, "form_unknown"),
]  # fmt: skip
"""Form, row, and the reason why it is dropped."""
