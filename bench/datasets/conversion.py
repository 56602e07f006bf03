"""``mens migrate openai convert`` compared with ``mens data check``, on a file with images; run by ``python -m
bench.data``.

100,000 rows in OpenAI's form; 7 % of them have images. Converting a file checks and rewrites each of its lines; it
should take no longer than the report on the same file. The two take turns, each in a separate process.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from bench.datasets.corpora import CORPORA, Row, write_file
from bench.harness.command import BenchFailed, print_goal
from bench.harness.processes import variant_processes

ROWS, SMOKE_ROWS, IMAGES = 100_000, 2_000, 0.07
BLOCK_ROWS = 5_000
MEMORY_LIMIT = 250_000_000
VARIANTS = ("convert", "report-lenient")
PRELOADED = ("shared.datasets.report", "openai_migration.conversion.files")


def compare_conversion(rounds: int, *, smoke: bool) -> bool:
    """Measure both, print the table and the goals; return whether these are met."""
    rows = SMOKE_ROWS if smoke else ROWS
    facts: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    python = Path(sys.executable)
    with (
        tempfile.TemporaryDirectory() as folder,
        variant_processes(smoke=smoke, python=python, preloaded=PRELOADED) as processes,
    ):
        path = Path(folder) / "rows.jsonl"
        write_rows(path, rows)
        for _ in range(rounds):
            for variant, rounds_of_variant in facts.items():
                output = processes.run(python, "bench.datasets.data_variants", variant, str(path))
                rounds_of_variant.append(json.loads(output.splitlines()[-1]))
                if rounds_of_variant[-1]["rows"] != rows:
                    raise BenchFailed(f"{variant} read {rounds_of_variant[-1]['rows']} of {rows} lines")
        size = path.stat().st_size / 1e6
    print(f"\n{rounds} rounds, {rows} rows, {size:.0f} MB, {IMAGES:.0%} with images; median")
    medians: dict[str, dict[str, float]] = {
        name: {
            key: statistics.median(facts_of_round[key] for facts_of_round in rounds_of_variant)
            for key in rounds_of_variant[0]
        }
        for name, rounds_of_variant in facts.items()
    }
    print(f"{'':<18}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}")
    for name, median in medians.items():
        print(f"{name:<18}{median['seconds']:>10.2f}{median['cpu_seconds']:>10.2f}{median['peak_bytes'] / 1e6:>10.0f}")
    convert, report = (medians[name] for name in VARIANTS)
    ratio, cpu_ratio = (report[clock] / convert[clock] for clock in ("seconds", "cpu_seconds"))
    is_fast = print_goal(
        "C3-convert", ratio=round(ratio, 2), cpu_ratio=round(cpu_ratio, 2), target=1.0, met=ratio >= 1, smoke=smoke
    )
    peak = convert["peak_bytes"]
    small = print_goal("C3-convert-memory", peak_bytes=peak, target=MEMORY_LIMIT, met=peak <= MEMORY_LIMIT, smoke=smoke)
    return is_fast and small


def write_rows(path: Path, count: int) -> None:
    """Write the chats of ``plain`` without its labels, some of them with an image."""
    draw = random.Random(3)
    write_file(path, CORPORA["plain"], min(count, BLOCK_ROWS) * 2_200)
    chats = [json.loads(line)["messages"] for line in path.read_bytes().splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            chat = [dict(turn) for turn in chats[number % len(chats)]]
            chat[-2]["content"] = f"{number} {chat[-2]['content']}"
            file.write(json.dumps({"messages": with_image(chat) if draw.random() < IMAGES else chat}) + "\n")


def with_image(chat: list[Row]) -> list[Row]:
    """Return a chat with an image in its last question."""
    image = {"type": "image_url", "image_url": {"url": "https://example.com/photo.png"}}
    chat[-2]["content"] = [{"type": "text", "text": chat[-2]["content"]}, image]
    return chat
