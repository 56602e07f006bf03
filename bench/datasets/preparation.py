"""Preparation of training data, compared with TRL's on the same chats (goal C2); run by ``python -m bench.data``.

The product's measurement includes everything: every line checked, rendered with the template, tokenised, labelled,
written to disk and packed. TRL's is `SFTTrainer._prepare_dataset` with ``assistant_only_loss`` and packing ``bfd``,
with one process and with two, and the faster of the two counts; reading the file into Arrow and loading the tokenizer
are not counted. Variants run in turns, each in a separate process. Ids and supervised tokens of every row are compared
too.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.datasets.preparation_corpus import make_base, paragraphs, write_chats
from bench.harness.command import BenchFailed, print_goal
from bench.harness.peers import peers_python, require
from bench.harness.processes import Processes, variant_processes

TARGET, PACKING_TARGET = 10.0, 0.995
MEMORY_LIMIT = 100_000_000
"""Bytes that preparing the long file may take in addition to the short one."""
VARIANTS = {  # name in the table: argument of bench/datasets/preparation_variants.py
    "mens": "mens",
    "mens, tokenizers": "mens-tokenizers",
    "trl, 1 process": "trl-1",
    "trl, 2 processes": "trl-2",
}
PRELOADED = ("trl.trainer.sft_trainer", "datasets", "fastokens", "worker.training.data.prepare")
Facts = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Amount of data to prepare.

    Attributes:
        rows: chats of the file.
        vocabulary: tokens of the tokenizer.
        library_text: whether the corpus includes the standard library's text, in addition to the repository's.
        copies: factor by which the file for the memory measurement is longer.
    """

    rows: int = 12_000
    vocabulary: int = 16_000
    library_text: bool = True
    copies: int = 20


SMOKE = Size(rows=60, vocabulary=2_000, library_text=False, copies=2)


class Preparation:
    """Measures the variants on one file of chats.

    Args:
        rounds: rounds of each variant.
        smoke: run at a size that takes seconds, and judge no goal.

    Raises:
        PeerMissing: a library that a variant needs is not installed.
    """

    def __init__(self, rounds: int, *, smoke: bool) -> None:
        require("fastokens")
        self._rounds, self._smoke, self._size = rounds, smoke, SMOKE if smoke else Size()
        self._peers = peers_python()

    def compare(self) -> bool:
        """Measure, print the table and the goal; return whether the goal is met.

        Raises:
            BenchFailed: in a smoke run, ids or masks differ.
        """
        size = self._size
        with (
            tempfile.TemporaryDirectory() as scratch,
            variant_processes(smoke=self._smoke, python=self._peers, preloaded=PRELOADED) as processes,
        ):
            folder = Path(scratch)
            chats, base, texts = folder / "chats.jsonl", folder / "base", paragraphs(library=size.library_text)
            make_base(base, texts, size.vocabulary)
            write_chats(chats, base, texts, size.rows)
            facts: dict[str, list[Facts]] = {name: [] for name in VARIANTS}
            for _ in range(self._rounds):
                for name, variant in VARIANTS.items():
                    facts[name].append(self._run(processes, variant, chats, base, folder))
            self._run(processes, "trl-rows", chats, base, folder)
            libraries = {facts[name][0]["library"] for name in ("mens", "mens, tokenizers")}
            identical = all(same_rows(folder / f"{library}.npz", folder / "trl.npz") for library in libraries)
            if self._smoke and not identical:
                raise BenchFailed("the product's ids or masks differ from TRL's")
            if self._smoke and libraries != {"fastokens", "tokenizers"}:
                raise BenchFailed(f"rows were encoded by {libraries}, not once by each of the two libraries")
            return self.report(facts, identical, self.memory_growth(processes, chats, base, folder, facts["mens"][0]))

    def _run(self, processes: Processes, variant: str, chats: Path, base: Path, out: Path) -> Facts:
        """Return one variant's measurements."""
        python = Path(sys.executable) if variant.startswith("mens") else self._peers
        # The tokenizers' threads are part of the measurement; after a fork they would hang.
        parallel = "false" if self._smoke else "true"
        output = processes.run(
            python,
            "bench.datasets.preparation_variants",
            variant,
            str(chats),
            str(base),
            str(out),
            TOKENIZERS_PARALLELISM=parallel,
        )
        facts: Facts = json.loads(output.splitlines()[-1])
        return facts

    def memory_growth(self, processes: Processes, chats: Path, base: Path, folder: Path, short: Facts) -> int:
        """Return the bytes by which the peak grows when the file is many times as long."""
        large = folder / "large.jsonl"
        with large.open("wb") as file:
            for _ in range(self._size.copies):
                file.write(chats.read_bytes())
        growth: int = self._run(processes, "mens", large, base, folder)["peak_bytes"] - short["peak_bytes"]
        return growth

    def report(self, facts_by_variant: dict[str, list[Facts]], identical: bool, growth: int) -> bool:
        """Print the table and the goal; return whether the goal is met."""
        seconds = {
            name: statistics.median(facts["seconds"] for facts in rounds) for name, rounds in facts_by_variant.items()
        }
        first = facts_by_variant["mens"][0]
        print(f"{first['rows']} chats, {first['tokens']} tokens, {self._rounds} rounds; seconds")
        for name, rounds in facts_by_variant.items():
            lowest = min(facts["seconds"] for facts in rounds)
            speed = first["tokens"] / seconds[name] / 1e6
            packing = f"packing {rounds[0]['packing']:.2%}"
            print(f"  {name:<17} median {seconds[name]:7.2f}  lowest {lowest:7.2f}  {speed:6.2f} M tokens/s  {packing}")
        print(f"a file {self._size.copies} times as long takes {growth / 1e6:.0f} MB more memory", end="; ")
        print(f"library {first['library']}")
        trl = min(seconds["trl, 1 process"], seconds["trl, 2 processes"])
        ratio, packing = trl / seconds["mens"], first["packing"]
        return print_goal(
            "C2",
            ratio=round(ratio, 2),
            target=TARGET,
            identical=identical,
            packing=round(packing, 4),
            grown_bytes=growth,
            library=first["library"],
            ratio_tokenizers=round(trl / seconds["mens, tokenizers"], 2),
            met=ratio >= TARGET and identical and packing >= PACKING_TARGET and growth <= MEMORY_LIMIT,
            smoke=self._smoke,
        )


def same_rows(ours: Path, theirs: Path) -> bool:
    """Return whether ids, supervised tokens and lengths of every row are equal."""
    import numpy as np

    own_rows, other = np.load(ours), np.load(theirs)
    return all(np.array_equal(own_rows[name], other[name]) for name in ("lengths", "ids", "supervised"))
