"""The rows that `datasets` and TRL make of the same files; run by the interpreter that has them, with a folder to write
into.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DAYS = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1}}, "required": []}
ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"Rain {number}?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": {key: value}}}],
            },
            {"role": "tool", "content": "no", "tool_call_id": "1"},
            {"role": "assistant", "content": "No."},
        ],
        "tools": [{"type": "function", "function": {"name": name, "description": name, "parameters": schema}}],
    }
    for number in range(700)
    for name, key, value, schema in [("rain", "city", "Rome", CITY) if number % 2 else ("sun", "days", 3, DAYS)]
]
"""Rows with two different tool schemas, which a typed table merges."""
PAIRS = [
    {"question": f"What is {number} + ü?", "answer": f'It is "{number}",\nor so.', "topic": "sums"}
    for number in range(9)
]
SHAREGPT = [
    {"conversations": [{"from": "user", "value": "Hi"}, {"from": "assistant", "value": "Hello"}]},
    {"conversations": [{"from": "system", "value": "A"}, {"from": "user", "value": "B"}, {"from": "assistant", "value": "C"}]},
]  # fmt: skip
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
PREFERENCES = [
    {"chosen": [*TALK, {"role": "assistant", "content": "See you"}], "rejected": [*TALK, {"role": "assistant", "content": "No"}]}
]  # fmt: skip


def main(folder: Path) -> None:
    """Write the files and, into `expected.json`, the rows that their own libraries read and make."""
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
    from trl import extract_prompt, maybe_convert_to_chatml

    table, pairs = Dataset.from_list(ROWS), Dataset.from_list(PAIRS)
    table.save_to_disk(folder / "saved", num_shards=3)
    DatasetDict({"train": pairs, "test": pairs.select([3, 1])}).save_to_disk(folder / "splits")
    table.to_parquet(folder / "rows.parquet")
    pairs.to_csv(folder / "pairs.csv")
    pairs.to_json(folder / "pairs.json", lines=False)
    shuffled = pairs.shuffle(seed=3)
    shuffled.save_to_disk(folder / "shuffled")
    preferences = [extract_prompt(copy.deepcopy(row)) for row in PREFERENCES]
    expected = {
        "saved": [*load_from_disk(folder / "saved")],
        "test": [*load_from_disk(folder / "splits")["test"]],
        "shuffled": [*load_from_disk(folder / "shuffled")],
        "parquet": [*load_dataset("parquet", data_files=str(folder / "rows.parquet"), split="train")],
        "csv": [*load_dataset("csv", data_files=str(folder / "pairs.csv"), split="train")],
        "json": [*load_dataset("json", data_files=str(folder / "pairs.json"), split="train")],
        "sharegpt": [maybe_convert_to_chatml(copy.deepcopy(row)) for row in SHAREGPT],
        "preferences": [{"messages": row["prompt"] + row["chosen"]} for row in preferences],
    }
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
