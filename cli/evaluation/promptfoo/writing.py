"""Writes an eval as promptfoo's configuration. Pure.

Every item is the variable ``item`` of a test, so templates stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cli.evaluation.eval_file import EvalFile
from cli.evaluation.promptfoo.assertions import NoCounterpart, to_assertion

SAMPLING = {"temperature": "temperature", "top_p": "top_p", "seed": "seed", "max_completion_tokens": "max_tokens"}


def write_promptfoo(evaluation: EvalFile, models: Sequence[str], url: str) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration that sends the same requests to the same models, and the parts of the eval that it leaves
    out, with the reason.

    Args:
        models: names that the installation serves.
        url: URL of the installation's API. promptfoo reads the key from ``MENS_API_KEY``.
    """
    unused, assertions = [], []
    for grader in evaluation.criteria:
        try:
            assertions.append(to_assertion(grader))
        except NoCounterpart as reason:
            unused.append(f"{grader.get('name', grader['type'])}: {reason}")
    config = {theirs: evaluation.sampling[ours] for ours, theirs in SAMPLING.items() if ours in evaluation.sampling}
    unused += [
        f"sampling_params.{key}: promptfoo has no such setting" for key in evaluation.sampling if key not in SAMPLING
    ]
    connection = {"apiBaseUrl": f"{url}/v1", "apiKeyEnvar": "MENS_API_KEY"}
    document = {
        "description": evaluation.name,
        "prompts": [_prompt(evaluation)],
        "providers": [
            {"id": f"openai:chat:{model}", "label": model, "config": connection | config} for model in models
        ],
        "defaultTest": {"assert": assertions},
        "tests": [{"vars": {"item": dict(item)}} for item in evaluation.items],
    }
    return document, unused


def _prompt(evaluation: EvalFile) -> str:
    """Return messages in JSON, which promptfoo fills in by value; an item's own messages use its filter ``dump``."""
    messages = evaluation.input_messages
    if messages["type"] == "item_reference":
        return f"{{{{ {messages['item_reference']} | dump }}}}"
    turns = [{"role": turn["role"], "content": _text(turn["content"])} for turn in messages["template"]]
    return json.dumps(turns, ensure_ascii=False)


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return "".join(part if isinstance(part, str) else part["text"] for part in parts)
