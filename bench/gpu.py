"""QLoRA on one GPU beside its peers and its limits (goals G1 to G5): ``python -m bench.gpu --size 8B``.

Needs no network: the base has a Qwen3's shapes and random weights, the data is a synthetic chat mix. Every lane is a
process of its own and all take turns: the product as it is; NF4 without the cache of dequantised weights, with it, and
the same weights in bf16 (G3); telemetry and checkpoints off (G5); `transformers.Trainer` with peft; TRL's settings;
Unsloth where it can be imported. Peak and copy rate for the roofline are measured in the same run. What cannot be run is
left out and said. ``--device cpu --size tiny`` goes through all of it on a CPU; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from bench.chats import chat_mix
from bench.gpu_lanes import SHAPES
from bench.recipe import (
    ROOT,
    LaneFailed,
    Outcome,
    execute,
    plan_mens,
    recipe_of,
    run_mens,
    run_peer,
    write_recipe,
)
from bench.roofline import Roofline
from bench.venv import ensure_venv
from shared.planner import TrainingRun

OURS = ("mens", "mens-nf4", "mens-cache", "mens-bf16", "mens-quiet")
PEERS = ("hf", "trl-packed", "trl-packed-large", "trl-padding-free", "unsloth")
HELD_OUT_ROWS = 4
USUAL_STEPS_BETWEEN_CHECKPOINTS = 500
MINIMUM_STEPS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--size", choices=list(SHAPES), default="1.7B")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of 64 rows")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lanes", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--grad-accum", type=int, help="micro-batches of 8 rows a step; 8, on a CPU 1")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "No CUDA device that torch can use; `--device cpu --size tiny` goes through the motions.", file=sys.stderr
        )
        return 2
    options.steps = max(options.steps, MINIMUM_STEPS)
    options.grad_accum = options.grad_accum or (8 if options.device == "cuda" else 1)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        bench = Bench(Path(folder), options)
        return report(bench, bench.compare())


class Bench:
    """The files and the settings of one comparison."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.peers = Path(sys.executable) if importlib.util.find_spec("trl") else ensure_venv()
        self.base = folder / "base"
        self.script("base", options.size, str(self.base), options.device)
        self.run = self.plan()
        self.recipe = recipe_of(self.run, folder, device=options.device)
        self.recipe_path = write_recipe(self.recipe, folder / "recipe.json")
        recomputing = replace(self.recipe, checkpointing=True)
        self.recomputing_path = write_recipe(recomputing, folder / "recipe-recomputing.json")
        self.recomputing: set[str] = set()
        self.roofline = Roofline(SHAPES[options.size], self.recipe, json.loads(self.script("probe", options.device)))

    def plan(self) -> TrainingRun:
        """A run with one checkpoint in the middle."""
        tokenizer, accumulated = AutoTokenizer.from_pretrained(self.base), self.options.grad_accum
        rows = 8 * accumulated * self.options.steps
        chats = chat_mix(lambda text: len(tokenizer.encode(text)), rows + HELD_OUT_ROWS)
        every = max(3, self.options.steps // 2 + 1)
        length = 2048 if self.options.device == "cuda" else 256
        wanted = {"grad_accum": accumulated, "checkpoint_every": every, "seq_len": length}
        return plan_mens(self.base, chats[:rows], chats[rows:], self.folder, exec=wanted)

    def script(self, *given: str) -> str:
        """Standard output of a part of ``bench/gpu_lanes.py``, by our own Python."""
        return execute([sys.executable, str(ROOT / "bench" / "gpu_lanes.py"), *given], threads=1)

    def compare(self) -> dict[str, list[Outcome]]:
        """All lanes in turns; one that fails is left out and said."""
        outcomes: dict[str, list[Outcome]] = {}
        broken: set[str] = set()
        for number in range(self.options.rounds):
            for lane in [name for name in self.options.lanes if name not in broken]:
                try:
                    outcomes.setdefault(lane, []).append(self.train(lane, self.folder / f"{lane}-{number}"))
                except LaneFailed as failure:
                    broken.add(lane)
                    outcomes.pop(lane, None)
                    print(f"  {lane} is left out: {failure.reason}", flush=True)
                else:
                    print(f"  {lane:<18} {outcomes[lane][-1].tokens_per_second:9.0f} tokens/s", flush=True)
        return outcomes

    def train(self, lane: str, folder: Path) -> Outcome:
        """One run of a lane."""
        if lane == "mens":
            return run_mens(self.run, self.recipe, folder, threads=1)
        if lane.startswith("mens-"):
            return run_mens(self.run, self.recipe, folder, 1, [str(ROOT / "bench" / "gpu_lanes.py"), lane])
        return self.train_peer(lane, folder)

    def train_peer(self, lane: str, folder: Path) -> Outcome:
        """A peer as fast as it goes: activations are recomputed only once it has run out of memory without."""
        script = "gpu_lanes.py" if lane == "unsloth" else "train_lanes.py"
        if lane not in self.recomputing:
            try:
                return run_peer(self.peers, lane, self.recipe_path, folder, 1, script)
            except LaneFailed as failure:
                if "out of memory" not in failure.reason.lower():
                    raise
                self.recomputing.add(lane)
                print(f"  {lane} recomputes activations from here on", flush=True)
        return run_peer(self.peers, lane, self.recomputing_path, folder.with_name(f"{folder.name}-again"), 1, script)


def report(bench: Bench, outcomes: dict[str, list[Outcome]]) -> int:
    """Table and goals; returns the exit code."""
    speed = {lane: statistics.median(one.tokens_per_second for one in ones) for lane, ones in outcomes.items()}
    peak = {lane: max(one.peak_bytes for one in ones) for lane, ones in outcomes.items()}
    limit, recipe = bench.roofline, bench.recipe
    print(
        f"{bench.options.size}, {len(recipe.rates)} steps of {recipe.rows_per_step} rows, {recipe.tokens()} tokens; {limit}"
    )
    print("lane               tokens/s   of roofline   peak GB")
    for lane, reached in speed.items():
        print(f"{lane:<18} {reached:9.0f} {reached / limit.tokens_per_second:12.1%} {peak[lane] / 1e9:9.2f}")
    if "mens" not in outcomes:
        return 1
    ours = outcomes["mens"][0]
    met = [
        *against_peers(speed),
        tell("G2", speed["mens"] / limit.tokens_per_second, 0.65 if bench.options.size == "8B" else 0.5),
        *against_bf16(outcomes, speed),
        *memory(ours, limit),
        *overhead(outcomes),
    ]
    return 0 if all(met) else 1


def tell(goal: str, ratio: float, target: float, *, at_most: bool = False, **facts: Any) -> bool:
    """Print a goal's JSON line; whether it is met."""
    met = ratio <= target if at_most else ratio >= target
    print(json.dumps({"goal": goal, "ratio": round(ratio, 4), "target": target, "pass": met} | facts))
    return met


def against_peers(speed: dict[str, float]) -> list[bool]:
    """G1: against the fastest peer, and against what most people run first."""
    met = []
    rivals = {lane: value for lane, value in speed.items() if lane == "unsloth" or lane.startswith("trl")}
    if rivals:
        fastest = max(rivals, key=lambda lane: rivals[lane])
        met.append(tell("G1", speed["mens"] / rivals[fastest], 1.25, peer=fastest, unsloth="unsloth" in rivals))
    if "hf" in speed:
        met.append(tell("G1-naive", speed["mens"] / speed["hf"], 4.0))
    return met


def against_bf16(outcomes: dict[str, list[Outcome]], speed: dict[str, float]) -> list[bool]:
    """G3: time of an NF4 step as a multiple of the same weights in bf16; the first step's loss shows equal logits."""
    met = []
    for lane, target in (("mens-cache", 1.03), ("mens-nf4", 1.08)):
        if lane in speed and "mens-bf16" in speed:
            first = [outcomes[name][0].losses[0] for name in (lane, "mens-bf16")]
            goal = f"G3-{lane.removeprefix('mens-')}"
            same = first[0] == first[1]
            ratio = speed["mens-bf16"] / speed[lane]
            met.append(tell(goal, ratio, target, at_most=True, first_loss_identical=same) and same)
    return met


def memory(ours: Outcome, limit: Roofline) -> list[bool]:
    """G4: the peak against the floor with its activations, and against what the engine said before it began."""
    said = ours.facts.get("memory", {})
    planned = ours.facts.get("budget", {}).get("predicted_bytes") or said.get("predicted_bytes")
    floor = limit.memory_floor(ours.facts.get("budget", {}))
    met = [tell("G4", ours.peak_bytes / floor, 1.15, at_most=True, floor_bytes=floor)]
    if planned:
        off = abs(planned / ours.peak_bytes - 1)
        met.append(tell("G4-estimate", off, 0.1, at_most=True, predicted_bytes=planned, peak_bytes=ours.peak_bytes))
    return met


def overhead(outcomes: dict[str, list[Outcome]]) -> list[bool]:
    """G5: share of a step's time for metrics and, spread over the usual number of steps, for checkpoints."""
    if "mens-quiet" not in outcomes:
        return []
    loud = statistics.median(one.facts["step_seconds"] for one in outcomes["mens"])
    quiet = statistics.median(one.facts["step_seconds"] for one in outcomes["mens-quiet"])
    checkpoint = statistics.median(one.facts["checkpoint_seconds"] for one in outcomes["mens"])
    share = max(0.0, loud / quiet - 1) + checkpoint / USUAL_STEPS_BETWEEN_CHECKPOINTS / quiet
    return [tell("G5", share, 0.02, at_most=True, step_seconds=[quiet, loud], checkpoint_seconds=checkpoint)]


if __name__ == "__main__":
    sys.exit(main())
