"""Proofs: in every run of the whole suite, the tests that the capability matrix names must have passed.

A row that names a test claims that the test is run. So if such a test is left out, skipped, renamed or failed in a run
of the whole suite, the run fails and names the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import pytest

from tests.support.scheduling import MINUTES
from tests.support.skips import reason_of

CHOOSING = ("markexpr", "keyword", "maxfail", "lf", "collectonly", "deselect", "ignore", "ignore_glob", "stepwise")
"""Options that make a run leave out tests."""
WHOLE = ("not (long or experiment)", "not (experiment)")
"""Marks that `make test` and `make everything` deselect: only repetitions and experiments, none of which is a proof."""


class Proofs:
    """A pytest plugin that records the outcomes of tests by their names without parameters."""

    def __init__(self) -> None:
        self._outcomes: dict[str, set[str]] = defaultdict(set)
        self._unproven: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record an outcome: of the test itself, or of a fixture that failed or skipped it.

        If the time limit left out one parameter of a test, the test's other parameters still prove the row, as in `make
        test`.
        """
        if report.skipped and MINUTES in reason_of(report):
            return
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid.partition("[")[0]].add(report.outcome)

    def unproven(self, named: Mapping[str, Collection[str]]) -> list[str]:
        """Return the faults, one per line.

        Args:
            named: by row of the matrix, the tests that it names.
        """
        return [
            f"{row}: {test}: {', '.join(sorted(self._outcomes[test])) if test in self._outcomes else 'not run'}"
            for row, tests in named.items()
            for test in tests
            if self._outcomes.get(test) != {"passed"}
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of the whole suite in which a proof is missing, unless the run failed or was stopped anyway."""
        if not is_whole_run(session.config) or session.exitstatus != pytest.ExitCode.OK:
            return
        from api.capabilities import CAPABILITIES

        self._unproven = self.unproven({row.id: row.proof.tests for row in CAPABILITIES.rows})
        if self._unproven:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the missing proofs."""
        for line in self._unproven:
            terminalreporter.write_line(f"UNPROVEN capability {line}", red=True)


def is_whole_run(config: pytest.Config) -> bool:
    """Return whether this process reports, and no path, mark, word or maximum of failures has left out tests."""
    is_worker = hasattr(config, "workerinput")
    chosen = {name: value for name in CHOOSING if (value := getattr(config.option, name, None))}
    is_partial = chosen not in ({}, *({"markexpr": marks} for marks in WHOLE))
    return not is_worker and not is_partial and config.args_source is not pytest.Config.ArgsSource.ARGS
