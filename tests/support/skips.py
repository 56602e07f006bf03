"""Summary at the end of a run: how many tests this machine skipped, for which reasons, and which package or machine
would run them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

REMEDIES = {
    r"^could not import 'vllm|vLLM is not installed|'xgrammar": "make install (extra serving-cpu)",
    r"^could not import '(pyarrow|pandas)": "make install (extras parquet, mlflow)",
    r"^could not import|torch is not installed": "make install",
    r"Chromium is not installed": "apt-get install chromium",
    r"bubblewrap": "apt-get install bubblewrap",
    r"libseccomp": "apt-get install libseccomp2",
    r"Landlock|nothing on this machine contains code": "Linux 5.13 or later with Landlock, and apt-get install bubblewrap libseccomp2",
    r"the clock of a program cannot be moved": "apt-get install faketime",
    r"gcc is not installed": "apt-get install gcc",
    r"no git history": "a clone of the repository, and apt-get install git",
    r"no Python here that other users may run": "apt-get install python3",
    r"root reads every file": "a user other than root",
    r"only root|may not mount|nothing may be mounted": "root, with the right to mount (CAP_SYS_ADMIN)",
    r"flash-linear-attention": "pip install flash-linear-attention, for an NVIDIA GPU",
    r"NVIDIA GPU|no accelerator": "an NVIDIA GPU",
    r"MENS_TEST_CONTAINERS": "Docker with Compose, and MENS_TEST_CONTAINERS=1",
    r"MENS_TEST_KUBE_APISERVER": "tests/deploy/api_server/build.py, and MENS_TEST_KUBE_APISERVER",
    r"of x86-64|variables are MKL's|Linux's|needs Linux": "Linux on x86-64",
    r"MENS_TEST_MINUTES": "more time: make long",
    r"SQLite explains its plan": "nothing: the test runs on PostgreSQL",
}
"""Package or machine that lets a skipped test run, by a pattern of the reason; the first matching pattern is used."""


class Skips:
    """A pytest plugin that prints the skipped tests, grouped by what would run them."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Print the list after all other summaries, which are long."""
        yield
        for line in summary([reason_of(report) for report in terminalreporter.stats.get("skipped", ())]):
            terminalreporter.write_line(line, yellow=True)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was skipped."""
    place = report.longrepr
    return place[2].removeprefix("Skipped: ") if isinstance(place, tuple) else str(place)


def remedy_of(reason: str) -> str | None:
    """Return what would run the test; None if no pattern matches the reason."""
    return next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, reason)), None)


def summary(reasons: list[str]) -> list[str]:
    """Return one line for each remedy, the most frequent first."""
    if not reasons:
        return []
    counts = Counter(remedy_of(reason) or reason for reason in reasons)
    head = f"{len(reasons)} tests or files were skipped. To run them, this machine needs:"
    return [head, *(f"{count:6}  {remedy}" for remedy, count in counts.most_common())]
