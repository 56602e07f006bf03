"""``mens up``: the commands that it prints, its reports of restarted programs, and how it is stopped."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from cli.client.connection import Connection
from cli.commands.up import chosen_bases, command, install_signal_handlers, print_unserved, print_usage, watch
from cli.main import app
from cli.standalone.programs import PROGRAMS, supervisor_config
from cli.standalone.stack import Stack, StackFailed
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, TwinOf, load_catalog, save_catalog
from shared.database.overview.base_users import Needed
from shared.settings import Settings
from tests.support.waiting import eventually


def printed_commands(home: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The commands that are printed for an installation in a folder, each split into its words."""
    stack = Stack(home, "tiny")
    stack.connection = Connection("http://127.0.0.1:8000", "mens-secret")
    print_usage(stack, "tiny")
    printed = capsys.readouterr().out.splitlines()
    for variable in ("MENS_API_URL=http://127.0.0.1:8000", "MENS_API_KEY=mens-secret", "OPENAI_API_KEY=mens-secret"):
        assert f"  export {variable}" in printed
    lines = [line for line in printed if line.startswith("  ") and "mens " in line]
    assert len(lines) == 4
    return [shlex.split(line) for line in lines]


def test_printed_commands_name_a_home_other_than_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a [b] c"
    assert {words[0] for words in printed_commands(home, capsys)} == {f"MENS_HOME={home}"}


def test_printed_commands_leave_the_default_home_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, *_ = printed_commands(tmp_path / ".mens", capsys)
    assert words[0].endswith("mens")
    assert Path(words[2]).is_file(), "the path of the example is relative to the present folder"


@pytest.mark.parametrize(("port", "bound"), [("99999", "65535"), ("-1", "0")])
def test_port_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str, bound: str
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    refused = CliRunner().invoke(app, ["up", "--port", port])
    assert (refused.exit_code, "--port" in refused.stderr, bound in refused.stderr) == (2, True, True)
    assert not (tmp_path / "home").exists()


def test_port_in_use_is_reported_before_a_base_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("cli.commands.up.install_signal_handlers", lambda *_: None)
    monkeypatch.setattr("cli.commands.up.build", lambda *_, **__: pytest.fail("the base is built first"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        refused = CliRunner().invoke(app, ["up", "--port", port])
    assert refused.exit_code == 1
    assert (
        refused.stderr
        == f"error: PORT_IN_USE: Port {port} is in use, perhaps by another Mens. Choose another port with --port.\n"
    )


def test_last_line_says_that_it_stopped_and_where_the_data_is(
    two_bases: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_HOME", str(two_bases.home))
    monkeypatch.setattr("cli.commands.up.install_signal_handlers", lambda stop, _cut: stop.set())
    ended = CliRunner().invoke(app, ["up", "--port", "0", "--weights", "original"])
    assert ended.exit_code == 0, ended.output
    last = ended.stdout.splitlines()[-1].partition(" ")[2]
    assert (
        last == f"stopped. Jobs, models and files are kept in {two_bases.home}; run the same command again to continue"
    )


def test_program_outside_the_path_is_named_relative_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = shlex.split(command(tmp_path))[-1]
    assert Path(program).is_file()


@pytest.fixture
def two_bases(tmp_path: Path) -> Settings:
    entries = [
        BaseModelEntry(name=name, source=LocalSource(path=name), digests={"config.json": digit * 64})
        for name, digit in [("mens-tiny", "0"), ("real", "1")]
    ]
    save_catalog(tmp_path / "catalog.json", Catalog(bases=entries))
    return Settings(home=tmp_path)


@pytest.mark.parametrize(
    ("named", "default_base", "served"),
    [
        ([], True, ["mens-tiny"]),
        (["real"], True, ["real", "mens-tiny"]),
        (["real", "real"], False, ["real"]),
        (["mens-tiny", "real"], True, ["mens-tiny", "real"]),
        (["mens-tiny"], False, ["mens-tiny"]),
    ],
)
def test_default_base_stays_unless_it_is_left_out(
    two_bases: Settings, named: list[str], default_base: bool, served: list[str]
) -> None:
    assert chosen_bases(two_bases, named, default_base) == served


def test_default_base_is_not_built_in_addition_to_another(tmp_path: Path) -> None:
    entry = BaseModelEntry(name="real", source=LocalSource(path="x"), digests={"config.json": "1" * 64})
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[entry]))
    assert chosen_bases(Settings(home=tmp_path), ["real"], True) == ["real"]


def test_nothing_to_serve_is_refused(two_bases: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        chosen_bases(two_bases, [], False)
    assert "--no-default-base needs --base" in capsys.readouterr().err


def test_aliases_of_a_base_that_is_not_served_are_named(
    two_bases: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aliases = {Needed("mens-tiny", False): ["helper", "support"], Needed("gone", True): ["old"]}
    monkeypatch.setattr("shared.database.overview.base_users.aliases_by_base", lambda _: aliases)
    monkeypatch.setattr("cli.commands.up.installed_database", lambda _: object())
    print_unserved(two_bases, ["real"])
    printed = capsys.readouterr().out
    assert "mens-tiny is not served, and these aliases need it: helper, support." in printed
    assert "up --base real` serves it too" in printed
    print_unserved(two_bases, ["real", "mens-tiny"])
    assert capsys.readouterr().out == ""


def test_aliases_that_a_twin_cannot_serve_are_named(
    two_bases: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = load_catalog(two_bases.catalog_path)
    real = catalog.get("real")
    twin = real.model_copy(
        update={"name": "real-nf4", "twin_of": TwinOf(name="real", digests=real.digests, double_quant=True)}
    )
    save_catalog(two_bases.catalog_path, Catalog(bases=[*catalog.bases, twin]))
    aliases = {Needed("real", False): ["quantised"], Needed("real", True): ["exact"]}
    monkeypatch.setattr("shared.database.overview.base_users.aliases_by_base", lambda _: aliases)
    monkeypatch.setattr("cli.commands.up.installed_database", lambda _: object())
    print_unserved(two_bases, ["real-nf4"])
    (line,) = capsys.readouterr().out.splitlines()[:-1]
    assert "real is served as its twin real-nf4, and these aliases need its own weights: exact." in line
    assert "up --base real --weights original` serves these" in line


START_SECONDS = 6
"""As long as a program has to run until supervisord takes it for started. The second worker needs less, on a busy machine too."""
WORKER = """
mkdir ran || { echo worker ready.; until [ -e seen ]; do sleep 0.05; done; echo no more; exit 3; }
echo worker ready.
until [ -e started ]; do sleep 0.05; done
kill -9 $$
"""
"""It dies once it is taken for started; the second time before that, once it was seen to be ready."""
SLEEPER = "echo worker ready.; exec sleep 600"


@pytest.fixture
def worker() -> str:
    """The script of the worker."""
    return WORKER


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path, worker: str) -> Iterator[Stack]:
    """A stack under a real supervisord; the API and a child of it ignore SIGTERM, all but the worker sleep."""

    def impatient(*arguments: Any) -> str:
        config = supervisor_config(*arguments).replace("startretries=5", "startretries=0")
        return config.replace("startsecs=2", f"startsecs={START_SECONDS}")

    (tmp_path / "mens.db").write_bytes(sqlite_template.read_bytes())
    (tmp_path / "worker.sh").write_text(f"cd {tmp_path}\n{worker}")
    (tmp_path / "api.sh").write_text("trap '' TERM\nsleep 601 &\necho deaf\nexec sleep 600\n")
    for name in PROGRAMS:
        script = name in ("worker", "api")
        monkeypatch.setitem(PROGRAMS, name, f"sh {{home}}/{name}.sh" if script else "sleep 600")
    monkeypatch.setattr("cli.standalone.stack.supervisor_config", impatient)
    monkeypatch.setattr("cli.commands.up.CHECK_SECONDS", 0.1)
    stack = Stack(tmp_path, "tiny", drain_seconds=0)
    try:
        stack.start()
        yield stack
    finally:
        cut = threading.Event()
        cut.set()
        stack.stop(cut)


class Telling(Console):
    """A console that creates a file once a program is reported ready again."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._marker = file

    def print(self, *objects: Any, **more: Any) -> None:
        super().print(*objects, **more)
        if str(objects[0]).endswith("ready again"):
            self._marker.touch()


@pytest.mark.network
def test_restarts_are_reported_and_a_program_that_keeps_dying_ends_it(
    supervised: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_started() -> bool:
        return any(each["name"] == "worker" and each["statename"] == "RUNNING" for each in supervised.processes())

    eventually(is_started)
    supervised.new_events()
    (supervised.home / "started").touch()
    with pytest.raises(StackFailed) as given_up:
        watch(supervised, Telling(supervised.home / "seen"), threading.Event())
    log = supervised.home / "logs" / "worker.log"
    times, lines = zip(*(line.split(" ", 1) for line in capsys.readouterr().out.splitlines()), strict=True)
    assert lines == (f"worker ended (terminated by SIGKILL) and was restarted; log: {log}", "worker is ready again")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", time) for time in times)
    assert str(given_up.value).startswith(f"worker keeps dying. The end of {log}:\n")
    assert str(given_up.value).endswith("no more")


def tree(stack: Stack) -> list[psutil.Process]:
    """supervisord and all below it, once the API has its child."""
    log = stack.home / "logs" / "api.log"
    eventually(lambda: log.exists() and "deaf" in log.read_text())
    supervisord = psutil.Process(stack.pid("api")).parent()
    assert supervisord
    return [supervisord, *supervisord.children(recursive=True)]


def running_commands(processes: list[psutil.Process]) -> list[str]:
    """Command lines of those that have not ended. Each may end while it is looked at, or be ended and not waited for."""
    commands = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a zombie is one too
            commands += [shlex.join(process.cmdline())] if process.is_running() else []
    return commands


@pytest.mark.network
@pytest.mark.parametrize("worker", [SLEEPER], ids=["sleeper"])
def test_killed_supervisord_is_back_with_all_programs_and_none_of_before_is_left(supervised: Stack) -> None:
    before = tree(supervised)
    supervised.new_events()
    before[0].kill()
    events: list[str] = []

    def is_back() -> bool:
        events.extend(supervised.new_events())
        return {"supervisord is ready again", "worker is ready again"} <= set(events)

    eventually(is_back)
    log = supervised.home / "logs" / "supervisord.log"
    assert (
        events[0] == f"supervisord ended (terminated by SIGKILL) and was started again, with all programs; log: {log}"
    )
    eventually(lambda: not running_commands(before))
    assert {program["name"] for program in supervised.processes() if program["pid"]} == set(PROGRAMS)


@pytest.mark.network
@pytest.mark.parametrize("worker", [SLEEPER], ids=["sleeper"])
def test_supervisord_that_dies_again_at_once_ends_it(supervised: Stack) -> None:
    tree(supervised)[0].kill()
    (supervised.home / "supervisord.conf").write_text("none")
    with pytest.raises(StackFailed, match="supervisord keeps dying"):
        watch(supervised, Console(), threading.Event())


@pytest.mark.network
@pytest.mark.parametrize("worker", [SLEEPER], ids=["sleeper"])
def test_stop_after_supervisord_was_killed_leaves_nothing_running(supervised: Stack) -> None:
    before = tree(supervised)
    before[0].kill()
    before[0].wait()
    eventually(lambda: running_commands(before) == ["sleep 601"])  # the API's child
    supervised.stop()
    eventually(lambda: not running_commands(before))
    following = Stack(supervised.home, "tiny")
    following.lock()
    following.stop()


@pytest.mark.network
def test_second_ctrl_c_cuts_the_stop_and_leaves_nothing_running(supervised: Stack) -> None:
    running = tree(supervised)
    assert len(running) > len(PROGRAMS)
    stop, cut = threading.Event(), threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install_signal_handlers(stop, cut)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
            assert stop.is_set() and not cut.is_set()
        began = time.monotonic()
        threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT]).start()
        supervised.stop(cut)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert 1 <= time.monotonic() - began < 8, "it waits for the second Ctrl-C, and no longer"
    eventually(lambda: not running_commands(running))
