"""What a refusal of vLLM is about when its sentence alone says so: the field of the caller's request, and what helps. Pure.

vLLM names settings as it keeps them, which is not always how the caller's API calls them, and gives its operator's advice
to the caller.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from shared.errors import Code

PROMPT = ("messages", "prompt", "input")
"""Where a caller writes what is asked."""
FORMAT = ("response_format", "text", "structured_outputs", "tools")
"""Where a caller writes a JSON schema or another grammar."""
WRITTEN = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    "logprobs": ("top_logprobs", "logprobs"),
}
"""vLLM's setting, and the fields that become it; the first that is there counts."""
FIRST_WORD = re.compile(r"\A`?(\w+)")
ADVICE = re.compile(
    r" (?:To increase this limit, set|Set|Make sure that) [^.]{0,200}?(?:VLLM_|--|max_model_len)[^.]{0,200}\."
    r"| Please reduce the length of the input prompt\."
)
"""For whom runs the server; and what a remedy of ours says."""


class Known(NamedTuple):
    """A refusal that is known by how it begins."""

    begins: re.Pattern[str]
    fields: tuple[str, ...] = ()
    remedy: str = ""
    code: Code = Code.REQUEST_REJECTED


KNOWN = (
    Known(
        re.compile(r"This model's maximum context length is|The decoder prompt \(length"),
        PROMPT,
        "Shorten the prompt, by the oldest turns of a chat for example.",
        Code.CONTEXT_LENGTH_EXCEEDED,
    ),
    Known(
        re.compile("Either prompt or prompt_embeds must be provided"),
        ("prompt",),
        "Say in `prompt` what the model is to answer.",
        Code.REQUEST_INVALID,
    ),
    Known(
        re.compile(r"The decoder prompt |Token id -?\d+ is out of vocabulary|At most [1-9]\d* \w+\(s\) may be"), PROMPT
    ),
    Known(
        re.compile(r".* is not a multimodal model|At most 0 \w+\(s\) may be"),
        PROMPT,
        "Send text only: this model takes nothing else.",
    ),
    Known(re.compile(r"Grammar error|Invalid (JSON )?grammar|Failed to transform|The (provided )?JSON schema"), FORMAT),
    Known(
        re.compile("n must be 1 when using greedy sampling"),
        ("n",),
        "At temperature 0 all answers are the same: ask for one, or set `temperature` above 0.",
    ),
)
UNKNOWN = Known(re.compile(""))


class Sentence(NamedTuple):
    """A refusal of one sentence, as the caller gets it."""

    message: str
    param: str | None
    remedy: str
    code: Code


def in_callers_words(message: str, param: str | None, asked: dict[str, Any]) -> Sentence:
    """What vLLM said in a sentence, about the field that the caller wrote.

    Args:
        param: the field that vLLM blames, if it names one.
        asked: the request as the caller wrote it.
    """
    known = next((each for each in KNOWN if each.begins.match(message)), UNKNOWN)
    message = ADVICE.sub("", message)
    fields = known.fields or (WRITTEN.get(param, ()) if param else FIRST_WORD.findall(message))
    written = next((field for field in fields if field in asked), param)
    if param in WRITTEN and written:
        message = re.sub(rf"\b{param}\b", written, message)
    return Sentence(message, written, known.remedy, known.code)
