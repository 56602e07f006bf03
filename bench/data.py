"""Validation of training files, beside what others do (goal C3): ``python -m bench.data``.

Makes a file of chats (lognormal lengths, several scripts), then lets every lane read it in a process of its own, in
turns (A B C A B C …), and compares medians. A process's start and imports are not counted. orjson and `datasets` live
in ``.cache/bench-venv``, made on the first run; the product needs neither. The last lines are JSON, one a goal.

``--size 2GB --memory`` streams one large file instead and reports the memory it took.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".cache" / "bench-venv"
PINNED = ("orjson==3.13.0", "datasets==5.2.0")
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
BLOCK_BYTES = 20_000_000
MEMORY_LIMIT = 120_000_000
GOALS = (
    ("C3-datasets", "mens", "datasets", 5.0),
    ("C3-pydantic", "mens", "pydantic", 10.0),
    ("C3-orjson", "mens", "orjson", 1.0),
    ("C3-errors", "mens-bad", "mens", 0.5),
)
LANGUAGES = {  # share of rows: words
    0.85: "the model learns what data shows and an adapter holds it while training goes on of a in is to we you they "
    'server loss gradient token batch answer question café "quoted" `code` {brackets} break.\n',
    0.05: "Größe für die Antwort naïve données que l'adaptateur garde pendant l'entraînement ein Modell lernt",
    0.06: "модель учится тому что показывают данные и адаптер хранит это пока идёт обучение ответ вопрос",
    0.04: "模型从数据中学习 适配器保存结果 训练继续进行 回答问题 数据 😀",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.data", description=__doc__)
    parser.add_argument("--size", default="200MB", help="of the file that is made, e.g. 200MB or 2GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--characters", type=float, default=1_100, help="median length of a chat's content")
    parser.add_argument("--memory", action="store_true", help="stream one file and report peak memory")
    options = parser.parse_args()
    size = int(float(options.size[:-2]) * UNITS[options.size[-2:].upper()])
    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder) / "good.jsonl"
        write_file(good, size, options.characters, bad_every=0)
        if options.memory:
            return report_memory(good)
        bad = Path(folder) / "bad.jsonl"
        write_file(bad, size, options.characters, bad_every=100)
        return report_speed(good, bad, options.rounds)


def report_speed(good: Path, bad: Path, rounds: int) -> int:
    """Run all lanes in turns, print the table and the goals."""
    ensure_venv()
    other = VENV / "bin" / "python"
    lanes = {
        "mens": (sys.executable, "mens", good),
        "mens-bad": (sys.executable, "mens-bad", bad),
        "orjson": (str(other), "orjson", good),
        "pydantic": (sys.executable, "pydantic", good),
        "datasets": (str(other), "datasets", good),
    }
    speeds: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(rounds):
        for name, (python, lane, path) in lanes.items():
            speeds[name].append(path.stat().st_size / 1e6 / run_lane(python, lane, path)["seconds"])
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{good.stat().st_size / 1e6:.0f} MB, {rounds} rounds; MB/s")
    for name, values in speeds.items():
        print(f"  {name:<10} median {medians[name]:7.1f}   lowest {min(values):7.1f}   highest {max(values):7.1f}")
    passed = [goal(name, medians[ours] / medians[theirs], target) for name, ours, theirs, target in GOALS]
    return 0 if all(passed) else 1


def report_memory(path: Path) -> int:
    """Stream the file once and report how far the process grew."""
    facts = run_lane(sys.executable, "mens", path)
    print(f"{path.stat().st_size / 1e6:.0f} MB in {facts['seconds']:.1f} s, {facts['rows']:.0f} rows")
    print(f"peak RSS {facts['peak_bytes'] / 1e6:.1f} MB, of which reading {facts['grown_bytes'] / 1e6:.1f} MB")
    passed = facts["peak_bytes"] <= MEMORY_LIMIT
    print(json.dumps({"goal": "C3-memory", **facts, "target": MEMORY_LIMIT, "pass": passed}))
    return 0 if passed else 1


def goal(name: str, ratio: float, target: float) -> bool:
    print(json.dumps({"goal": name, "ratio": round(ratio, 2), "target": target, "pass": ratio >= target}))
    return ratio >= target


def run_lane(python: str, lane: str, path: Path) -> dict[str, float]:
    command = [python, str(ROOT / "bench" / "data_lanes.py"), lane, str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    facts: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return facts


def ensure_venv() -> None:
    """orjson and `datasets`, beside the product's environment."""
    if not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "--quiet", *PINNED], check=True)


def write_file(path: Path, size: int, characters: float, bad_every: int) -> None:
    """A file of about ``size`` bytes: a block of chats again and again, each row with its number."""
    lines = list(rows(random.Random(7), min(size, BLOCK_BYTES), characters))
    written = number = 0
    with path.open("wb") as file:
        while written < size:
            for line in lines:
                number += 1
                bad = bad_every and number % bad_every == 0
                content = BAD[number // bad_every % len(BAD)] if bad else line.replace(b"@", b"%d" % number)
                written += file.write(content + b"\n")
                if written >= size:
                    break


BAD = (
    b'{"messages": [{"role": "user", "content": "Hi"}]}',
    b'{"messages": [{"role": "robot", "content": "Hi"}]}',
    b'{"prompt": "Hi", "response": "Hello", "rating": 9}',
    b'{"prompt": "Hi", "response": ',
    b"",
)


def rows(draw: random.Random, size: int, characters: float) -> Iterator[bytes]:
    vocabularies = [words.split(" ") for words in LANGUAGES.values()]
    made = 0
    while made < size:
        turns: list[dict[str, str]] = []
        if draw.random() < 0.3:
            turns.append({"role": "system", "content": "You answer briefly and kindly."})
        words = draw.choices(vocabularies, weights=list(LANGUAGES))[0]
        length = min(60_000, draw.lognormvariate(math.log(characters), 1.0))
        count = draw.choice((1, 1, 1, 2, 3))
        for _ in range(count):
            turns.append({"role": "user", "content": "@ " + text(draw, words, length / count / 3)})
            turns.append({"role": "assistant", "content": text(draw, words, length / count * 2 / 3)})
        row = {"messages": turns, "rating": draw.randint(1, 5), "category": draw.choice(("docs", "code"))}
        line = json.dumps(row, ensure_ascii=draw.random() < 0.1).encode()
        made += len(line)
        yield line


def text(draw: random.Random, words: list[str], characters: float) -> str:
    return " ".join(draw.choices(words, k=max(1, round(characters / 6))))


if __name__ == "__main__":
    sys.exit(main())
