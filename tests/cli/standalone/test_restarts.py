"""Restarts in supervisord's log, read as it grows. test_up.py runs a real supervisord."""

from __future__ import annotations

from pathlib import Path

from cli.standalone.restarts import RestartLog

EARLIER = "2026-01-02 03:04:05,678 WARN exited: worker (exit status 1; not expected)\n"


def test_restarted_programs_are_listed_with_how_they_ended(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    log.write_text(EARLIER)
    restarts, time = RestartLog(log), "2026-01-02 03:05:06,789"

    def append(text: str) -> list[tuple[str, str]]:
        with log.open("a") as file:
            file.write(text)
        return restarts.read_new()

    assert append(f"{time} INFO spawned: 'worker' with pid 7\n{time} INFO spawned: 'api' with pid 8\n") == []
    assert append(f"{time} WARN exited: worker (terminated by SIGKILL; not expected)\n{time} INFO spaw") == []
    assert append("ned: 'worker' with pid 9\n") == [("worker", "terminated by SIGKILL")]
    again = f"{time} INFO exited: api (exit status 0; expected)\n{time} INFO spawned: 'api' with pid 10\n"
    assert append(again + again) == [("api", "exit status 0")] * 2
    given_up = "gave up: api entered FATAL state, too many start retries too quickly"
    assert append(f"{time} WARN exited: api (exit status 2; not expected)\n{time} INFO {given_up}\n") == []


def test_log_may_not_exist_yet(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    restarts = RestartLog(log)
    assert restarts.read_new() == []
    log.write_text(EARLIER + "2026-01-02 03:04:06,678 INFO spawned: 'worker' with pid 7\n")
    assert restarts.read_new() == [("worker", "exit status 1")]


def test_rotated_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    log.write_text(EARLIER * 10)
    restarts = RestartLog(log)
    log.write_text(EARLIER + "2026-01-02 03:04:06,678 INFO spawned: 'worker' with pid 7\n")
    assert restarts.read_new() == [("worker", "exit status 1")]
