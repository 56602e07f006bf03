"""The single-machine stack: its lock, its configuration files, readiness and restarts."""

from __future__ import annotations

import re
import threading
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

from cli.client.connection import saved_connection
from cli.commands.up import up
from cli.standalone.environment import replica_environments
from cli.standalone.programs import PROGRAMS, drain_seconds, supervisor_config, valkey_config
from cli.standalone.restarts import RestartLog
from cli.standalone.stack import Stack, StackFailed
from shared.errors import Conflict, InvalidRequest
from shared.settings import Settings, read_settings
from tests.support.pretended_gpu import MACHINES, pretend


def test_one_stack_per_home(tmp_path: Path) -> None:
    first = Stack(tmp_path, "base")
    first.lock()
    second = Stack(tmp_path, "base")
    with pytest.raises(Conflict, match="already running"):
        second.start()
    second.stop()
    assert saved_connection(tmp_path) is None, "the second one has written nothing"
    first.stop()
    third = Stack(tmp_path, "base")
    third.lock()
    third.stop()


def test_every_program_is_restarted_and_killed_by_group(tmp_path: Path) -> None:
    config = supervisor_config(tmp_path, tmp_path / "supervisor.sock")
    for name in PROGRAMS:
        assert f"[program:{name}]" in config
    for line in ("autorestart=true", "killasgroup=true"):
        assert config.count(line) == len(PROGRAMS)


def test_api_stops_before_what_it_needs(tmp_path: Path) -> None:
    config = ConfigParser(interpolation=None)
    config.read_string(supervisor_config(tmp_path, tmp_path / "supervisor.sock"))
    order = sorted(PROGRAMS, key=lambda name: config[f"program:{name}"].getint("priority"), reverse=True)
    assert (order[:2], order[-1]) == (["api", "serving"], "valkey")


@pytest.mark.parametrize("drain_seconds", [10, 30.5])
def test_only_draining_programs_are_stopped_without_their_children(tmp_path: Path, drain_seconds: float) -> None:
    config = ConfigParser(interpolation=None)
    config.read_string(supervisor_config(tmp_path, tmp_path / "supervisor.sock", drain_seconds))
    programs = {name: config[f"program:{name}"] for name in PROGRAMS}
    assert {name for name in PROGRAMS if not programs[name].getboolean("stopasgroup")} == {"api", "serving"}
    for name in ("api", "serving"):
        assert float(programs[name]["environment"].partition("=")[2].strip('"')) == drain_seconds
        assert float(programs[name]["stopwaitsecs"]) > drain_seconds


def test_each_further_base_has_a_replica_of_its_own(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "tiny", more_bases=("large",))
    settings = stack._environment()
    first, second = settings["MENS_SERVING_URLS"].split(",")
    assert (settings["MENS_SERVING_BASE"], first) == ("tiny", f"http://127.0.0.1:{settings['MENS_SERVING_PORT']}")
    shares = stack._memory
    assert (settings["MENS_SERVING_MEMORY_BYTES"], len(shares)) == (str(shares[0]), 2)
    replicas = replica_environments(tmp_path, ("tiny", "large"), stack._ports, shares)
    config = ConfigParser(interpolation=None)
    config.read_string(supervisor_config(tmp_path, tmp_path / "supervisor.sock", 10, {}, replicas))
    assert "MENS_SERVING" not in config["program:serving"]["environment"]
    own = dict(each.split("=") for each in config["program:serving-2"]["environment"].split(","))
    assert own == {
        "MENS_DRAIN_SECONDS": '"10"',
        "MENS_SERVING_BASE": '"large"',
        "MENS_SERVING_PORT": f'"{second.rpartition(":")[2]}"',
        "MENS_SERVING_CACHE_DIR": f'"{tmp_path}/serving-2-cache"',
        "MENS_SERVING_MEMORY_BYTES": f'"{shares[1]}"',
    }
    assert config["program:serving-2"]["command"] == config["program:serving"]["command"]
    assert not config["program:serving-2"].getboolean("stopasgroup")
    priorities = {name: config[f"program:{name}"].getint("priority") for name in stack._programs}
    assert sorted(priorities.values()) == list(range(6))
    assert max(priorities, key=priorities.__getitem__) == "api"


@pytest.mark.parametrize(
    ("machine", "device", "threads"),
    [("new driver", "cuda", None), ("two cards", "cuda", None), ("old driver", None, "1"), (None, None, "1")],
)
def test_programs_use_a_gpu_that_torch_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str | None, device: str | None, threads: str | None
) -> None:
    pretend(MACHINES[machine] if machine else None, tmp_path / "gpu", monkeypatch)
    stack = Stack(tmp_path, "tiny")
    settings = stack._environment()
    assert (settings.get("MENS_SERVING_DEVICE"), settings.get("OMP_NUM_THREADS")) == (device, threads)
    assert ("MENS_SERVING_MEMORY_BYTES" in settings) == (device is None)
    own = stack._replicas()["serving"]
    assert ("MENS_SERVING_GPU_MEMORY_UTILIZATION" in own) == (device == "cuda")
    divided = settings.get("CUDA_VISIBLE_DEVICES"), own.get("CUDA_VISIBLE_DEVICES")
    assert divided == (("0", "1") if machine == "two cards" else (None, None))


@pytest.mark.parametrize(("given", "seconds"), [(None, 10), ("", 10), ("60", 60), ("0.5", 0.5)])
def test_drain_time_is_ten_seconds_unless_set(
    monkeypatch: pytest.MonkeyPatch, given: str | None, seconds: float
) -> None:
    monkeypatch.delenv("MENS_DRAIN_SECONDS", raising=False)
    if given is not None:
        monkeypatch.setenv("MENS_DRAIN_SECONDS", given)
    assert drain_seconds(read_settings(Settings)) == seconds


def test_invalid_drain_time_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_DRAIN_SECONDS", "soon")
    with pytest.raises(InvalidRequest, match="MENS_DRAIN_SECONDS"):
        up()


def test_broker_is_on_loopback_with_password_and_append_only_file(tmp_path: Path) -> None:
    lines = valkey_config(tmp_path, "1234", "secret").splitlines()
    assert {"bind 127.0.0.1", "port 1234", "requirepass secret", "appendonly yes"} <= set(lines)


def test_readiness_ignores_logs_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_readiness_after_restart_ignores_earlier_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(tmp_path, "base")
    (tmp_path / "logs").mkdir()
    log, supervisor_log = (tmp_path / "logs" / f"{name}.log" for name in ("worker", "supervisord"))
    stack._restarts = RestartLog(supervisor_log)
    stack._ports = {}
    monkeypatch.setattr(Stack, "pid", lambda *_: 2)
    log.write_text("jobs@host ready.\n")
    assert stack.new_events() == []
    supervisor_log.write_text(
        "INFO exited: worker (exit status 1; not expected)\nINFO spawned: 'worker' with pid 2\n",
    )
    assert stack.new_events() == [f"worker ended (exit status 1) and was restarted; log: {log}"]
    assert stack.new_events() == []
    with log.open("a") as file:
        file.write("jobs@host ready.\n")
    assert [stack.new_events(), stack.new_events()] == [["worker is ready again"], []]


def test_program_that_keeps_restarting_fails_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter(range(1, 100))
    monkeypatch.setattr(Stack, "_is_ready", lambda *_: False)
    monkeypatch.setattr(Stack, "raise_if_failed", lambda _: None)
    monkeypatch.setattr(Stack, "processes", lambda _: [{"name": "worker", "pid": next(pids)}])
    with pytest.raises(StackFailed, match="worker keeps dying"):
        list(Stack(tmp_path, "base").wait_until_ready(60))


def test_waiting_ends_when_stop_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(Stack, "_is_ready", lambda *_: False)
    assert list(Stack(tmp_path, "base").wait_until_ready(60, stop)) == []


def failing_stack(home: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack whose replica has ended once and was started again; an earlier start has logged another cause."""
    stack = Stack(home, "tiny")
    (home / "logs").mkdir()
    path = home / "logs" / "serving.log"
    path.write_text("ValueError: No available memory for the cache blocks.\n")
    stack._log_starts = {"serving": path.stat().st_size}
    with path.open("a") as file:
        file.write(log)
    pids = iter([1, 2, 2, 2, 2, 2, 2, 2])
    monkeypatch.setattr(Stack, "_is_ready", lambda *_: False)
    monkeypatch.setattr(Stack, "raise_if_failed", lambda _: None)
    monkeypatch.setattr(Stack, "processes", lambda _: [{"name": "serving", "pid": next(pids)}])
    monkeypatch.setattr(Stack, "pid", lambda *_: 0)
    return stack


def test_replica_that_was_refused_ends_the_start_with_the_cause_of_this_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "BASE_DOES_NOT_FIT: tiny needs 3.00 GiB. Serve fewer bases.\n"
    stack = failing_stack(tmp_path, f"{refused}{refused}", monkeypatch)
    with pytest.raises(StackFailed) as failed:
        list(stack.wait_until_ready())
    assert failed.value.message == f"serving (tiny) has ended: {refused.strip()}"
    assert failed.value.remedy == f"Its log: {tmp_path / 'logs' / 'serving.log'}"


def test_limit_on_the_wait_names_the_last_lines_of_this_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = failing_stack(tmp_path, "loading weights\n", monkeypatch)
    monkeypatch.setattr(Stack, "processes", lambda _: [])
    monkeypatch.setattr(Stack, "_programs", property(lambda _: {"serving": ""}))
    with pytest.raises(StackFailed) as failed:
        list(stack.wait_until_ready(0.2))
    assert failed.value.message.startswith("serving (tiny) is not ready after 0 s. The end of")
    assert failed.value.message.endswith("\n  loading weights")


def test_program_that_gets_on_is_waited_for_and_one_that_does_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = failing_stack(tmp_path, "loading weights\n", monkeypatch)
    monkeypatch.setattr(Stack, "processes", lambda _: [])
    monkeypatch.setattr(Stack, "_programs", property(lambda _: {"serving": ""}))
    for name, seconds in [
        ("stack.STALL_SECONDS", 0.5),
        ("stack.REPORT_SECONDS", 0.2),
        ("progress.CHECK_SECONDS", 0.05),
    ]:
        monkeypatch.setattr(f"cli.standalone.{name}", seconds)
    log, began, reports = tmp_path / "logs" / "serving.log", time.monotonic(), list[str]()

    def report(line: str) -> None:
        reports.append(line)
        # The log grows for two seconds.
        if time.monotonic() - began < 2:
            log.write_text(f"{log.read_text()}(EngineCore pid=1) INFO 11-25 23:24:12 [a.py:68] step {len(reports)}\n")

    with pytest.raises(StackFailed, match="has neither logged nor computed"):
        list(stack.wait_until_ready(report=report))
    assert time.monotonic() - began > 2
    assert re.fullmatch(rf"waiting for serving \(tiny\) \(\d+ s\); log: {re.escape(str(log))}", reports[1])
