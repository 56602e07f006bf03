"""A greedy answer to one question, computed only with transformers: ``python independent_answer.py BASE QUESTION
MAX_TOKENS``.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Print the answer as JSON."""
    base, question, limit = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=int(limit), do_sample=False)[0, ids.shape[1] :]
    print(json.dumps({"answer": tokenizer.decode(written, skip_special_tokens=True)}))


if __name__ == "__main__":
    main()
