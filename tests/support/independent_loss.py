"""Mean loss per token of the last answers of chats, computed only with transformers and PEFT.

    python independent_loss.py BASE [ADAPTER] < ROWS.jsonl

A separate program, so that no module of Mens is imported.
"""

from __future__ import annotations

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Print the loss as JSON."""
    base, adapter = sys.argv[1], sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    total, tokens = 0.0, 0
    for line in sys.stdin:
        messages = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        answer = messages[-1]["content"] + tokenizer.eos_token
        prompt_ids, answer_ids = (tokenizer(part, add_special_tokens=False).input_ids for part in (prompt, answer))
        ids = torch.tensor([prompt_ids + answer_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, len(prompt_ids) :], reduction="sum"))
        tokens += len(answer_ids)
    print(json.dumps({"loss": total / tokens, "tokens": tokens}))


if __name__ == "__main__":
    main()
