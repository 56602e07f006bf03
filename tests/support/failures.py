"""Print the cause of a failure when it happens, so that a run that ends early, for example by a time limit, still shows
what failed.
"""

from __future__ import annotations

import pytest

CAUSE_LINES = 3


class Failures:
    """A pytest plugin that prints each failed test with the last lines of its error, in the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failed report."""
        if report.failed:
            terminal = self._config.pluginmanager.getplugin("terminalreporter")
            for line in ("", *failure_lines(report)):
                terminal.write_line(line, red=True)


def failure_lines(report: pytest.TestReport) -> list[str]:
    """Return the test's name and phase, and the last lines of the error."""
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    return [f"{report.nodeid} failed ({report.when}):", *lines[-CAUSE_LINES:]]
