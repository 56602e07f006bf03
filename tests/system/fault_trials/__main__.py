"""Cause faults in a real installation with active jobs and callers, and print a verdict on each.

  python -m tests.system.fault_trials                      all of them, about fifteen minutes
  python -m tests.system.fault_trials --list               list the trials
  python -m tests.system.fault_trials --only runs-full     one; the option can be repeated

A trial starts jobs on a tiny base and causes a fault (mounts, signals, locks, a changed clock), while callers poll,
upload, chat and read /ready. It fails if a job is lost, runs twice or fails permanently; if an attempt starts again
without its checkpoint; if a caller gets no response, a response without a code, or one that discloses details of the
server; if nothing reports the outage; or if work does not continue soon afterwards.

Needs root, to mount, and the development environment, which has PostgreSQL, SeaweedFS and Valkey; the trials of the clock need Debian's
package faketime. Prints the rows of docs/faults.md and, as its last lines, one JSON object a trial.

exit codes: 0 all passed, 1 one is bad, 2 one could not be made here and the others passed
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from cli.standalone.stack import StackFailed
from tests.system.fault_trials.faults import CannotTry
from tests.system.fault_trials.sites import SITES, running_site
from tests.system.fault_trials.trials import TRIALS, Site
from tests.system.fault_trials.verdicts import Verdict, table

EXIT_PASSED, EXIT_BAD, EXIT_UNTRIED = 0, 1, 2


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.fault_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", choices=TRIALS, help="make this trial; repeatable")
    parser.add_argument("--list", action="store_true", help="print the trials and end")
    options = parser.parse_args()
    if options.list:
        for name, trial in TRIALS.items():
            print(f"{name:22} {trial.layout:12} {trial.fault}")
        return EXIT_PASSED
    # The default action of SIGTERM would leave mounts and servers behind, which `finally` blocks remove.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    verdicts = list(make(options.only or TRIALS))
    print(table(verdicts))
    for verdict in verdicts:
        print(json.dumps(verdict.as_json()))
    if any(verdict.bad for verdict in verdicts):
        return EXIT_BAD
    return EXIT_UNTRIED if any(verdict.untried for verdict in verdicts) else EXIT_PASSED


def make(names: Iterable[str]) -> Iterator[Verdict]:
    """Make trials, those of one kind of installation after each other, and say on stderr how it goes."""
    layouts = list(SITES)
    ordered = sorted(names, key=lambda name: layouts.index(TRIALS[name].layout))
    for layout in dict.fromkeys(TRIALS[name].layout for name in ordered):
        group = [name for name in ordered if TRIALS[name].layout == layout]
        print(f"starting an installation: {layout}", file=sys.stderr)
        try:
            with running_site(layout) as site:
                for name in group:
                    yield make_one(name, site)
        except CannotTry as error:
            yield from [Verdict(name, TRIALS[name].fault, untried=str(error)) for name in group]
        except StackFailed as error:
            yield from [Verdict(name, TRIALS[name].fault, bad=[f"nothing started: {error.message}"]) for name in group]


def make_one(name: str, site: Site) -> Verdict:
    """Make a trial, and say how it went."""
    began = time.monotonic()
    verdict = TRIALS[name].run(name, site)
    state = "passed" if verdict.passed else f"NOT TRIED: {verdict.untried}" if verdict.untried else "BAD"
    print(f"{name}: {state}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    for line in verdict.bad:
        print(f"  {line}", file=sys.stderr)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
