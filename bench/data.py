"""The data path, compared with other libraries (goals C3, then C2): ``python -m bench.data``.

Runs ``bench/datasets/validation.py``, ``bench/datasets/conversion.py`` and ``bench/datasets/preparation.py``; each
prints a table, and one line of JSON per goal. The exit code is 0 when all met their goals. The peers are installed in
``.cache/bench-venv``, made on the first run; the product needs none.

``--memory --size 2GB`` streams one large file instead and reports the memory that its validation took; a smoke run does
that too.
"""

from __future__ import annotations

import argparse
import sys

from bench.datasets.conversion import compare_conversion
from bench.datasets.corpora import CORPORA
from bench.datasets.preparation import Preparation
from bench.datasets.validation import Validation
from bench.harness.command import bench_parser, parse_options, run_bench

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
SMOKE = {"rounds": 1, "size": "3MB"}


def main() -> int:
    parser = bench_parser("bench.data", __doc__)
    parser.add_argument("--only", choices=("validation", "conversion", "preparation"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=in_bytes, default="200MB", help="size of a file to validate, e.g. 200MB or 2GB")
    parser.add_argument("--corpora", nargs="+", choices=tuple(CORPORA), default=list(CORPORA))
    parser.add_argument("--memory", action="store_true", help="validate one file and report peak memory")
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: measure(options))


def measure(options: argparse.Namespace) -> bool:
    """Run the chosen parts; return whether all their goals are met."""
    met = []
    if options.only in (None, "validation"):
        validation = Validation(options.size, options.rounds, smoke=options.smoke)
        if options.memory or options.smoke:
            met.append(validation.report_memory())
        if not options.memory:
            met.append(validation.compare(options.corpora))
    if options.only in (None, "conversion") and not options.memory:
        met.append(compare_conversion(options.rounds, smoke=options.smoke))
    if options.only in (None, "preparation") and not options.memory:
        met.append(Preparation(options.rounds, smoke=options.smoke).compare())
    return all(met)


def in_bytes(size: str) -> int:
    """Convert a size such as ``200MB`` to bytes."""
    return int(float(size[:-2]) * UNITS[size[-2:].upper()])


if __name__ == "__main__":
    sys.exit(main())
