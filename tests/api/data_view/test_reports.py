"""Reports on files: a limited number is kept, even if their callers do not ask again; errors are kept for a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import pytest

from api.data_view import reports
from api.data_view.reports import FileReports, ReportKey
from api.data_view.types import ReportMade
from shared.errors import Code, TooMany, Unavailable

MADE = ReportMade.model_construct(seq_len=None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileReports]:
    """Reports whose callers do not wait for them."""
    monkeypatch.setattr(reports, "FIRST_WAIT_SECONDS", 0.0)
    file_reports = FileReports()
    yield file_reports
    file_reports.close()


def key(number: int) -> ReportKey:
    return ReportKey(str(number), "", None, None)


def fail() -> ReportMade:
    raise Unavailable(Code.PROGRAM_FAILED, "No memory.", remedy="Try again.")


def begin(file_reports: FileReports, number: int, make: Callable[[], ReportMade]) -> None:
    """Begin a report that cannot end before its caller is answered, and wait for its end."""
    answered, ended = threading.Event(), threading.Event()

    def after_the_answer() -> ReportMade:
        assert answered.wait(10)
        try:
            return make()
        finally:
            ended.set()

    assert file_reports.find("acme", key(number), after_the_answer) is None
    answered.set()
    assert ended.wait(10)
    deadline = time.monotonic() + 10
    while file_reports._making and time.monotonic() < deadline:
        time.sleep(0.01)


def test_reports_that_nobody_fetches_are_bounded(made: FileReports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "KEPT", 3)
    for number in range(6):
        begin(made, number, fail if number % 2 else lambda: MADE)
    assert not made._making
    assert list(made._kept) == [key(3), key(4), key(5)]
    assert made.find("acme", key(4), fail) is MADE


def test_error_is_raised_once_and_then_the_report_is_tried_again(made: FileReports) -> None:
    begin(made, 0, fail)
    with pytest.raises(Unavailable):
        made.find("acme", key(0), lambda: MADE)
    begin(made, 0, lambda: MADE)
    assert made.find("acme", key(0), fail) is MADE


def test_old_error_is_not_raised(made: FileReports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "FAILURE_SECONDS", 0.0)
    begin(made, 0, fail)
    begin(made, 0, lambda: MADE)
    assert made.find("acme", key(0), fail) is MADE


def test_all_that_wait_for_a_report_get_its_error(made: FileReports, monkeypatch: pytest.MonkeyPatch) -> None:
    all_three, told = threading.Barrier(3), list[str]()

    def wait_with_the_other(futures: list[Future[ReportMade]], _: float) -> None:
        all_three.wait(10)
        wait(futures, 10)

    monkeypatch.setattr(reports, "wait", wait_with_the_other)

    def fail_when_both_wait() -> ReportMade:
        all_three.wait(10)
        return fail()

    def ask() -> None:
        try:
            made.find("acme", key(0), fail_when_both_wait)
        except Unavailable as error:
            told.append(error.message)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert told == ["No memory."] * 2


def test_surplus_reports_of_a_tenant_are_refused_until_one_has_ended(made: FileReports) -> None:
    gate = threading.Event()

    def wait_for_gate() -> ReportMade:
        assert gate.wait(10)
        return MADE

    for number in range(reports.WAITING_OF_A_TENANT):
        assert made.find("acme", key(number), wait_for_gate) is None
    with pytest.raises(TooMany):
        made.find("acme", key(9), wait_for_gate)
    gate.set()
    deadline = time.monotonic() + 10
    while made._making and time.monotonic() < deadline:
        time.sleep(0.01)
    begin(made, 9, lambda: MADE)
    assert made.find("acme", key(9), fail) is MADE
