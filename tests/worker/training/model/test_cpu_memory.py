"""The planned memory on a CPU compared with the memory that the trainer's process really uses, on a real model."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from shared.hashing import digest_file
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest, Machine
from tests.support.smollm2 import smollm2_entry
from tests.support.training_runs import TinyBase

MEASURED = """
import sys
from worker.train import main
from bench.harness.peak_memory import peak_bytes
code = main(sys.argv[1:])
print(peak_bytes())
sys.exit(code)
"""
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "quietly",
    "mix",
    "some",
    "jugs",
    "of",
    "liquor",
    "for",
    "a",
    "visitor",
]


def chats(rows: int, words: int) -> list[dict[str, object]]:
    """Chats of different lengths, two thirds of them the answer."""
    draw = random.Random(1)

    def chat() -> dict[str, object]:
        length = round(words * draw.uniform(0.6, 1.4))
        question, answer = (" ".join(draw.choices(WORDS, k=part)) for part in (length // 3, length - length // 3))
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    return [chat() for _ in range(rows)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.torch
@pytest.mark.parametrize(
    ("quant", "seq_len", "batch_size", "words"),
    [
        # Minutes each: `make long` has them, CI does not.
        pytest.param("nf4", 512, 4, 200, id="nf4", marks=pytest.mark.experiment),
        pytest.param("none", 512, 4, 200, id="none"),
        pytest.param("none", 2048, 1, 1300, id="none-long-rows", marks=pytest.mark.experiment),
    ],
)
def test_a_plans_memory_is_within_15_per_cent_of_the_peak(
    smollm2: Path, tmp_path: Path, quant: str, seq_len: int, batch_size: int, words: int
) -> None:
    base = TinyBase(smollm2_entry(), smollm2)
    steps = 2
    run = base.plan_run(
        tmp_path,
        chats(steps * batch_size, words),
        adapter={"rank": 16, "method": "qlora" if quant == "nf4" else "lora"},
        quant={"base": quant},
        exec={"epochs": 1, "batch_size": batch_size, "seq_len": seq_len},
    )
    train = tmp_path / "train.jsonl"
    checked = preflight(
        JobRequest(run.plan.contract, accepted=True),
        base.entry,
        smollm2,
        InputFile("file-train", digest_file(train), train, steps * batch_size),
        None,
        Machine("cpu", host_bytes=16 << 30, cores=1),
    )
    (tmp_path / "plan.json").write_text(run.model_dump_json())
    variables = os.environ | {"MENS_SAMPLE_ANSWERS": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "plan.json"), str(tmp_path / "run")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    peak = int(done.stdout.splitlines()[-1])
    print(f"{checked.estimate.vram_bytes >> 20} MiB planned, {peak >> 20} MiB taken, {checked.estimate.vram}")
    assert checked.estimate.vram_bytes == pytest.approx(peak, rel=0.15)
