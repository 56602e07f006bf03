"""The single-machine stack: one per home folder, and configurations that say what they must."""

from __future__ import annotations

import threading
from configparser import ConfigParser
from pathlib import Path

import pytest

from cli.connection import saved_connection
from cli.programs import PROGRAMS, drain_seconds, supervisor_config, valkey_config
from cli.restarts import Restarts
from cli.stack import Stack, StackFailed
from cli.up import up
from shared.errors import InvalidRequest
from shared.settings import Settings, read_settings


def test_one_stack_per_home(tmp_path: Path) -> None:
    first = Stack(tmp_path, "base")
    first.lock()
    second = Stack(tmp_path, "base")
    with pytest.raises(StackFailed, match="already running"):
        second.start()
    second.stop()
    assert saved_connection(tmp_path) is None, "the second one has touched nothing"
    first.stop()
    third = Stack(tmp_path, "base")
    third.lock()
    third.stop()


def test_every_program_is_restarted_and_killed_with_its_group(tmp_path: Path) -> None:
    config = supervisor_config(tmp_path, tmp_path / "supervisor.sock")
    for name in PROGRAMS:
        assert f"[program:{name}]" in config
    for line in ("autorestart=true", "killasgroup=true"):
        assert config.count(line) == len(PROGRAMS)


def test_the_api_stops_first_and_what_it_needs_after_it(tmp_path: Path) -> None:
    config = ConfigParser(interpolation=None)
    config.read_string(supervisor_config(tmp_path, tmp_path / "supervisor.sock"))
    order = sorted(PROGRAMS, key=lambda name: config[f"program:{name}"].getint("priority"), reverse=True)
    assert (order[:2], order[-1]) == (["api", "serving"], "valkey")


@pytest.mark.parametrize("drain_seconds", [10, 30.5])
def test_only_those_that_drain_leave_their_children_alone_at_first(tmp_path: Path, drain_seconds: float) -> None:
    config = ConfigParser(interpolation=None)
    config.read_string(supervisor_config(tmp_path, tmp_path / "supervisor.sock", drain_seconds))
    programs = {name: config[f"program:{name}"] for name in PROGRAMS}
    assert {name for name in PROGRAMS if not programs[name].getboolean("stopasgroup")} == {"api", "serving"}
    for name in ("api", "serving"):
        assert float(programs[name]["environment"].partition("=")[2].strip('"')) == drain_seconds
        assert float(programs[name]["stopwaitsecs"]) > drain_seconds


@pytest.mark.parametrize(("given", "seconds"), [(None, 10), ("", 10), ("60", 60), ("0.5", 0.5)])
def test_requests_have_ten_seconds_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, seconds: float
) -> None:
    monkeypatch.delenv("MENS_DRAIN_SECONDS", raising=False)
    if given is not None:
        monkeypatch.setenv("MENS_DRAIN_SECONDS", given)
    assert drain_seconds(read_settings(Settings)) == seconds


def test_a_time_that_is_none_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_DRAIN_SECONDS", "soon")
    with pytest.raises(InvalidRequest, match="MENS_DRAIN_SECONDS"):
        up()


def test_the_broker_is_on_loopback_with_a_password_and_a_log(tmp_path: Path) -> None:
    lines = valkey_config(tmp_path, "1234", "secret").splitlines()
    assert {"bind 127.0.0.1", "port 1234", "requirepass secret", "appendonly yes"} <= set(lines)


def test_a_program_is_ready_by_what_it_says_now_not_by_old_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path, "base")
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "worker.log"
    log.write_text("jobs@host ready.\n")
    stack._log_starts = {"worker": log.stat().st_size}
    stack._ports = {}
    monkeypatch.setattr(Stack, "pid", lambda *_: 1)
    assert not stack._is_ready("worker")
    with log.open("a") as file:
        file.write("jobs@host ready.\n")
    assert stack._is_ready("worker")


def test_a_program_is_ready_again_by_what_it_says_after_it_was_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path, "base")
    (tmp_path / "logs").mkdir()
    log, supervisor_log = (tmp_path / "logs" / f"{name}.log" for name in ("worker", "supervisord"))
    stack._restarts = Restarts(supervisor_log)
    stack._ports = {}
    monkeypatch.setattr(Stack, "pid", lambda *_: 2)
    log.write_text("jobs@host ready.\n")
    assert stack.news() == []
    supervisor_log.write_text(
        "INFO exited: worker (exit status 1; not expected)\nINFO spawned: 'worker' with pid 2\n",
    )
    assert stack.news() == [f"worker ended (exit status 1) and was started again; log: {log}"]
    assert stack.news() == []
    with log.open("a") as file:
        file.write("jobs@host ready.\n")
    assert [stack.news(), stack.news()] == [["worker is ready again"], []]


def test_a_program_that_is_started_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter(range(1, 100))
    monkeypatch.setattr(Stack, "_is_ready", lambda *_: False)
    monkeypatch.setattr(Stack, "refuse_dead_programs", lambda _: None)
    monkeypatch.setattr(Stack, "processes", lambda _: [{"name": "worker", "pid": next(pids)}])
    with pytest.raises(StackFailed, match="worker keeps dying"):
        list(Stack(tmp_path, "base").wait_until_ready(60))


def test_waiting_ends_when_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(Stack, "_is_ready", lambda *_: False)
    assert list(Stack(tmp_path, "base").wait_until_ready(60, stop)) == []
