"""The command line of a bench: ``--smoke``, the exit code, and a goal's line of JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

EXIT_MET, EXIT_MISSED, EXIT_PEER_MISSING = 0, 1, 2


class BenchFailed(Exception):
    """A variant ended with an error, or the variants' results contradict each other."""


class PeerMissing(Exception):
    """A library that a variant needs is not installed; the message names it, and how to install it."""


def bench_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of ``python -m module``, with ``--smoke``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="run every variant once, at a size that takes seconds; goals are not judged",
    )
    return parser


def parse_options(parser: argparse.ArgumentParser, smoke: Mapping[str, Any]) -> argparse.Namespace:
    """Return the parsed command line.

    Args:
        smoke: defaults that replace the parser's in a smoke run; the command line takes precedence over both.
    """
    if parser.parse_args().smoke:
        parser.set_defaults(**smoke)
    return parser.parse_args()


def run_bench(bench: Callable[[], bool]) -> int:
    """Run a bench and return its exit code: 0 all goals met, 1 one missed or a variant failed, 2 a peer is missing.

    Args:
        bench: returns whether all goals are met.
    """
    # The default action of SIGTERM would leave servers behind that are stopped in `finally` blocks.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return EXIT_MET if bench() else EXIT_MISSED
    except PeerMissing as missing:
        print(missing, file=sys.stderr)
        return EXIT_PEER_MISSING
    except BenchFailed as failure:
        print(failure, file=sys.stderr)
        return EXIT_MISSED
    finally:
        signal.signal(signal.SIGTERM, before)


def print_goal(goal: str, *, target: float, met: bool, smoke: bool, **facts: Any) -> bool:
    """Print a goal's line of JSON.

    Args:
        met: whether the measured value meets the target.
        smoke: whether this is a smoke run: its line states that, and leaves ``pass`` null.
        facts: further keys, in their order.

    Returns:
        whether the goal is met; always True in a smoke run.
    """
    verdict = {"pass": None, "smoke": True} if smoke else {"pass": met}
    print(json.dumps({"goal": goal, **facts, "target": target, **verdict}), flush=True)
    return smoke or met
