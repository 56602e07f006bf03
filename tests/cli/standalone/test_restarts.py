"""What supervisord's log tells of programs that end, read as it grows. test_up.py asks a real supervisord."""

from __future__ import annotations

from pathlib import Path

from cli.restarts import Restarts

EARLIER = "2026-01-02 03:04:05,678 WARN exited: worker (exit status 1; not expected)\n"


def test_who_was_started_again_and_how_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    log.write_text(EARLIER)
    restarts, time = Restarts(log), "2026-01-02 03:05:06,789"

    def news(text: str) -> list[tuple[str, str]]:
        with log.open("a") as file:
            file.write(text)
        return restarts.news()

    assert news(f"{time} INFO spawned: 'worker' with pid 7\n{time} INFO spawned: 'api' with pid 8\n") == []
    assert news(f"{time} WARN exited: worker (terminated by SIGKILL; not expected)\n{time} INFO spaw") == []
    assert news("ned: 'worker' with pid 9\n") == [("worker", "terminated by SIGKILL")]
    again = f"{time} INFO exited: api (exit status 0; expected)\n{time} INFO spawned: 'api' with pid 10\n"
    assert news(again + again) == [("api", "exit status 0")] * 2
    given_up = "gave up: api entered FATAL state, too many start retries too quickly"
    assert news(f"{time} WARN exited: api (exit status 2; not expected)\n{time} INFO {given_up}\n") == []


def test_there_may_be_no_log_yet(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    restarts = Restarts(log)
    assert restarts.news() == []
    log.write_text(EARLIER + "2026-01-02 03:04:06,678 INFO spawned: 'worker' with pid 7\n")
    assert restarts.news() == [("worker", "exit status 1")]


def test_a_log_that_was_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    log.write_text(EARLIER * 10)
    restarts = Restarts(log)
    log.write_text(EARLIER + "2026-01-02 03:04:06,678 INFO spawned: 'worker' with pid 7\n")
    assert restarts.news() == [("worker", "exit status 1")]
