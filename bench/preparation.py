"""Preparation of training data, beside TRL's of the same chats (goal C2): ``run(rounds)``, called by ``bench/data.py``.

Ours is all of it: every line checked, written with the template, tokenised, labelled, written to disk and packed. TRL's
is `SFTTrainer._prepare_dataset` with ``assistant_only_loss`` and packing ``bfd``, with one process and with two, and the
faster one counts; reading the file into Arrow and loading the tokenizer are not held against it. Lanes run in turns, each
in a process of its own. Ids and learnt tokens of every row are compared before anything is said about speed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.preparation_corpus import ROOT, make_base, paragraphs, write_chats
from bench.venv import ensure_venv

ROWS = 12_000
TARGET, PACKING_TARGET = 10.0, 0.995
FASTOKENS, FASTOKENS_FOLDER = "fastokens==0.3.5", ROOT / ".cache" / "bench-fastokens"
MEMORY_COPIES = 20
MEMORY_LIMIT = 100_000_000
"""Bytes that preparing a file twenty times as long may take beyond the short one."""
Facts = dict[str, Any]


def run(rounds: int) -> bool:
    """Measure, print the table and the goal's line; whether the goal is met."""
    peer = ensure_venv()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        chats, base, texts = folder / "chats.jsonl", folder / "base", paragraphs()
        make_base(base, texts)
        write_chats(chats, base, texts, ROWS)
        lanes = {
            "mens": lambda: lane(sys.executable, "mens", chats, base, folder, fast=True),
            "mens, tokenizers": lambda: lane(sys.executable, "mens", chats, base, folder, fast=False),
            "trl, 1 process": lambda: lane(str(peer), "trl-1", chats, base, folder),
            "trl, 2 processes": lambda: lane(str(peer), "trl-2", chats, base, folder),
        }
        found: dict[str, list[Facts]] = {name: [] for name in lanes}
        for _ in range(rounds):
            for name, measure in lanes.items():
                found[name].append(measure())
        lane(str(peer), "trl-rows", chats, base, folder)
        identical = all(same_rows(folder / f"{library}.npz", folder / "trl.npz") for library in libraries(found))
        grown = memory_growth(chats, base, folder, found["mens"][0])
        return report(found, identical, grown)


def lane(python: str, name: str, chats: Path, base: Path, out: Path, *, fast: bool = False) -> Facts:
    """One lane's facts."""
    command = [python, str(ROOT / "bench" / "preparation_lanes.py"), name, str(chats), str(base), str(out)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(fastokens())} if fast else {"MENS_BENCH_WITHOUT_FASTOKENS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"lane {name} failed:\n{done.stderr[-3000:]}")
    facts: Facts = json.loads(done.stdout.splitlines()[-1])
    return facts


def fastokens() -> Path:
    """The folder that the faster tokenizer is imported from, where the environment has none of its own."""
    if importlib.util.find_spec("fastokens") is None and not FASTOKENS_FOLDER.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(FASTOKENS_FOLDER),
            FASTOKENS,
        ]
        subprocess.run(command, check=True)
    return FASTOKENS_FOLDER


def libraries(found: dict[str, list[Facts]]) -> set[str]:
    return {facts["library"] for facts in found["mens"] + found["mens, tokenizers"]}


def same_rows(ours: Path, theirs: Path) -> bool:
    """Whether ids, learnt tokens and lengths of every row are equal."""
    one, other = np.load(ours), np.load(theirs)
    return all(np.array_equal(one[name], other[name]) for name in ("lengths", "ids", "learnt"))


def memory_growth(chats: Path, base: Path, folder: Path, short: Facts) -> int:
    """Bytes that the peak grows by when the file is many times as long."""
    large = folder / "large.jsonl"
    with large.open("wb") as file:
        for _ in range(MEMORY_COPIES):
            file.write(chats.read_bytes())
    growth: int = lane(sys.executable, "mens", large, base, folder, fast=True)["peak_bytes"] - short["peak_bytes"]
    large.unlink()
    return growth


def report(found: dict[str, list[Facts]], identical: bool, grown: int) -> bool:
    """Print what was found; whether the goal is met."""
    seconds = {name: statistics.median(facts["seconds"] for facts in lanes) for name, lanes in found.items()}
    first = found["mens"][0]
    print(f"{first['rows']} chats, {first['tokens']} tokens, {len(found['mens'])} rounds; seconds")
    for name, lanes in found.items():
        times = [facts["seconds"] for facts in lanes]
        speed = first["tokens"] / seconds[name] / 1e6
        packing = f"packing {lanes[0]['packing']:.2%}"
        print(f"  {name:<17} median {seconds[name]:7.2f}  lowest {min(times):7.2f}  {speed:6.2f} M tokens/s  {packing}")
    print(f"a file {MEMORY_COPIES} times as long takes {grown / 1e6:.0f} MB more memory; library {first['library']}")
    trl = min(seconds["trl, 1 process"], seconds["trl, 2 processes"])
    ratio, packing = trl / seconds["mens"], first["packing"]
    passed = ratio >= TARGET and identical and packing >= PACKING_TARGET and grown <= MEMORY_LIMIT
    facts = {"goal": "C2", "ratio": round(ratio, 2), "target": TARGET, "identical": identical}
    facts |= {"packing": round(packing, 4), "grown_bytes": grown, "library": first["library"]}
    facts |= {"ratio_tokenizers": round(trl / seconds["mens, tokenizers"], 2), "pass": passed}
    print(json.dumps(facts))
    return passed


if __name__ == "__main__":
    sys.exit(0 if run(int(sys.argv[1]) if len(sys.argv) > 1 else 3) else 1)
