"""A QLoRA training step beside what others do (goal C1): ``python -m bench.train``.

Makes a tiny Qwen3 chat base and a realistic chat mix, then lets the product, `transformers.Trainer` with peft, and TRL's
SFTTrainer at its best setting train the same adapter on it, in turns (A B C A B C …), each in a process of its own, and
compares medians of useful (non-padding) tokens per second. Base, NF4 with double quantisation, rows, steps, rates and
the initial adapter are the same; the first two steps are not counted. Afterwards one program computes every adapter's
mean loss over the same rows. The last lines are JSON, one a goal.

TRL's settings are tried once each before the rounds; the fastest takes part in them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from bench.chats import chat_mix, corpus
from bench.recipe import Outcome, Recipe, evaluate, plan_mens, recipe_of, run_mens, run_peer, write_recipe
from bench.venv import ensure_venv
from shared.planner import TrainingRun
from worker import pretrain

GOALS = (("C1", "hf", 4.0), ("C1-trl", "trl", 1.0))
LOSS_TOLERANCE = 1e-3
TRL_SETTINGS = ("packed", "padding-free", "single", "grouped")
HELD_OUT_ROWS = 40
PRETRAINING_STEPS = 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of 16 rows")
    parser.add_argument("--hidden", type=int, default=128, help="width of the base; the rest of its shape follows")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens at most")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl-settings", nargs="+", default=TRL_SETTINGS, choices=TRL_SETTINGS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="bench-train-") as folder:
        bench = prepare(Path(folder), options)
        return report(bench, compare(bench, options.rounds))


class Bench:
    """The files and the settings of one comparison."""

    def __init__(self, folder: Path, run: TrainingRun, recipe: Recipe, options: argparse.Namespace) -> None:
        self.folder, self.run, self.recipe = folder, run, recipe
        self.recipe_path = write_recipe(recipe, folder / "recipe.json")
        self.python, self.threads = ensure_venv(), options.threads
        self.trl_settings: list[str] = list(options.trl_settings)

    def train(self, lane: str, name: str) -> Outcome:
        """One run of a lane, in a folder of that name."""
        if lane == "mens":
            return run_mens(self.run, self.recipe, self.folder / name, self.threads)
        return run_peer(self.python, lane, self.recipe_path, self.folder / name, self.threads)


def prepare(folder: Path, options: argparse.Namespace) -> Bench:
    """Base, chats, plan and recipe."""
    base = folder / "tiny"
    tokenizer = make_base(base, options.hidden, options.vocabulary)
    rows = options.steps * Recipe("", [], [], []).rows_per_step
    chats = chat_mix(lambda text: len(tokenizer.encode(text)), rows + HELD_OUT_ROWS)
    run = plan_mens(base, chats[:rows], chats[rows:], folder, exec={"seq_len": options.seq_len})
    recipe = recipe_of(run, folder)
    lengths = sorted(len(row["input_ids"]) for row in recipe.rows)
    learnt = sum(recipe.targets(step) for step in range(options.steps)) / recipe.tokens()
    print(
        f"h {options.hidden}, {len(tokenizer)} tokens of vocabulary, {options.threads} thread(s); {rows} rows of mean"
    )
    print(
        f"{recipe.tokens() / rows:.0f}, median {lengths[rows // 2]}, longest {lengths[-1]} tokens; {learnt:.0%} learnt"
    )
    return Bench(folder, run, recipe, options)


def make_base(folder: Path, hidden: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """A Qwen3 of four layers, made as `mens base build` makes one, pretrained until it knows its words a little."""
    torch.manual_seed(0)
    pretrain.VOCAB_SIZE = vocabulary
    documents = [{"text": text} for text in corpus()]
    tokenizer = pretrain.train_tokenizer(documents)
    tokenizer.model_max_length = 16_384
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=4,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        intermediate_size=3 * hidden,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
        initializer_range=pretrain.INITIALIZER_RANGE,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    pretrain.pretrain(model, pretrain.encode_corpus(documents, tokenizer), PRETRAINING_STEPS, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def compare(bench: Bench, rounds: int) -> dict[str, list[Outcome]]:
    """All lanes in turns; what TRL does best is found first."""
    best = fastest_trl(bench)
    lanes = {"mens": "mens", "hf": "hf", "trl": f"trl-{best}"}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in lanes}
    for number in range(rounds):
        for name, lane in lanes.items():
            outcomes[name].append(bench.train(lane, f"{name}-{number}"))
            one = outcomes[name][-1]
            speeds = f"{one.tokens_per_second:8.0f} tokens/s {one.tokens_per_cpu_second:8.0f} by CPU time"
            print(f"  round {number + 1} {name:<5} {speeds}", flush=True)
    return outcomes


def fastest_trl(bench: Bench) -> str:
    """TRL's best setting here, by one run of each."""
    if len(bench.trl_settings) == 1:
        return bench.trl_settings[0]
    tried = {name: bench.train(f"trl-{name}", f"try-{name}").tokens_per_cpu_second for name in bench.trl_settings}
    best = max(tried, key=lambda name: tried[name])
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in tried.items())
    print(f"TRL, tokens per CPU second: {speeds}; {best} takes part", flush=True)
    return best


def report(bench: Bench, outcomes: dict[str, list[Outcome]]) -> int:
    """Table, losses and goals; returns the exit code."""
    losses = evaluate(
        bench.python, bench.recipe_path, {name: o[0].adapter for name, o in outcomes.items()}, bench.threads
    )
    medians = {name: statistics.median(one.tokens_per_second for one in ones) for name, ones in outcomes.items()}
    cpu = {name: statistics.median(one.tokens_per_cpu_second for one in ones) for name, ones in outcomes.items()}
    print("lane    tokens/s   lowest  highest   by CPU   peak MB   mean loss")
    for name, ones in outcomes.items():
        speeds, peak = [one.tokens_per_second for one in ones], max(one.peak_bytes for one in ones) / 1e6
        wall = f"{medians[name]:10.0f} {min(speeds):8.0f} {max(speeds):8.0f}"
        print(f"{name:<5} {wall} {cpu[name]:8.0f} {peak:9.0f}   {losses[name]:.6f}")
    ours, theirs = outcomes["mens"][0], outcomes["hf"][0]
    facts = {
        "loss_relative_difference": abs(losses["mens"] / losses["hf"] - 1),
        "largest_step_loss_difference": largest_difference(ours.losses, theirs.losses),
        "first_gradient_norm_difference": largest_difference(ours.grad_norms[:1], theirs.grad_norms[:1]),
    }
    passed = True
    for goal, peer, target in GOALS:
        ratio = medians["mens"] / medians[peer]
        met = ratio >= target and (goal != "C1" or facts["loss_relative_difference"] <= LOSS_TOLERANCE)
        line = {"goal": goal, "ratio": round(ratio, 2), "target": target, "pass": met}
        line |= {"cpu_time_ratio": round(cpu["mens"] / cpu[peer], 2)} | (facts if goal == "C1" else {})
        print(json.dumps(line))
        passed = passed and met
    return 0 if passed else 1


def largest_difference(ours: list[float], theirs: list[float]) -> float:
    """Largest relative difference of two equally long lists."""
    return max(abs(one / other - 1) for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    sys.exit(main())
