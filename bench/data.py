"""The data path beside what others do (goals C3, then C2): ``python -m bench.data``.

Runs ``bench/validation.py`` and ``bench/preparation.py``; each prints a table and JSON, one line a goal. The exit code
is 0 when both met their goals. The peers live in ``.cache/bench-venv``, made on the first run; the product needs none.

``--memory --size 2GB`` streams one large file instead and reports the memory that its validation took.
"""

from __future__ import annotations

import argparse
import sys

from bench import validation
from bench.corpora import CORPORA

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.data", description=__doc__)
    parser.add_argument("--only", choices=("validation", "preparation"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=in_bytes, default="200MB", help="of a file to validate, e.g. 200MB or 2GB")
    parser.add_argument("--corpora", nargs="+", choices=tuple(CORPORA), default=list(validation.DEFAULT_CORPORA))
    parser.add_argument("--memory", action="store_true", help="validate one file and report peak memory")
    options = parser.parse_args()
    if options.memory:
        return 0 if validation.report_memory(options.size) else 1
    passed = []
    if options.only != "preparation":
        passed.append(validation.run(options.rounds, options.size, options.corpora))
    if options.only != "validation":
        from bench import preparation

        passed.append(preparation.run(options.rounds))
    return 0 if all(passed) else 1


def in_bytes(size: str) -> int:
    return int(float(size[:-2]) * UNITS[size[-2:].upper()])


if __name__ == "__main__":
    sys.exit(main())
