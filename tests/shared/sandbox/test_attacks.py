"""Every attack succeeds without a sandbox and is held by every level, as root and as another user; neighbours notice nothing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from shared.errors import InvalidRequest
from shared.sandbox import confinement
from shared.sandbox.attacks import ATTACKS, Target, fork, source_of, start_threads, take_memory
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Level, Limits
from shared.sandbox.probe import PROBE_LIMITS, attack, probe, targets
from tests.support.sandboxes import grade_unconfined, level_parameters, run_as_nobody

pytestmark = pytest.mark.sandbox

AttackFunction = Callable[[Target], bool]
BY_NAME = pytest.mark.parametrize("attempt", ATTACKS, ids=lambda attempt: str(attempt.__name__))
PROBE_PROGRAM = """
import json, sys
from shared.sandbox.probe import probe
print(json.dumps(probe(sys.argv[1]).as_dict()))
"""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setenv("OF_THE_PARENT", "secret")
    with targets() as found:
        yield found


@BY_NAME
def test_without_a_sandbox_it_succeeds(attempt: AttackFunction, target: Target) -> None:
    assert grade_unconfined(source_of(attempt), target) == 1.0


@pytest.mark.parametrize("level", level_parameters())
def test_every_level_holds_every_attack(level: Level) -> None:
    found = attack(level)
    assert {each.name for each in found} == {attempt.__name__ for attempt in ATTACKS}
    assert [each for each in found if not each.held] == []


@pytest.mark.parametrize("level", level_parameters())
def test_a_user_without_rights_is_held_as_root_is(level: Level) -> None:
    ran = run_as_nobody(PROBE_PROGRAM, level=level)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["level"] == level, report["reasons"]
    assert len(report["attacks"]) == len(ATTACKS)


@pytest.mark.parametrize("level", level_parameters())
def test_root_gives_each_grader_a_user_of_its_own(level: Level) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    source = "import os\ndef grade(sample, item): return os.getuid()"
    with Sandbox(level) as sandbox:
        first, second = (sandbox.grade(f"{source}  # {number}", {}, {}) for number in range(2))
    assert first != second
    assert min(first, second) >= confinement.FIRST_UID


@pytest.mark.parametrize("level", level_parameters())
def test_neighbours_do_not_notice_bombs(level: Level) -> None:
    """Another sandbox, and another grader of the same one, answer while one forks, starts threads and takes memory."""
    honest = "import threading\ndef grade(sample, item):\n    t = threading.Thread(target=len, args=('',))\n"
    honest += "    t.start()\n    t.join()\n    return item['n']"
    stop = threading.Event()
    rounds = []

    def bomb(sandbox: Sandbox) -> None:
        while not stop.is_set():
            rounds.append([sandbox.grade(source_of(each), {}, {}) for each in (fork, start_threads, take_memory)])

    with Sandbox(level, PROBE_LIMITS) as bombed, Sandbox(level) as other:
        bombed.grade(honest, {}, {"n": 0})
        bomber = threading.Thread(target=bomb, args=(bombed,))
        bomber.start()
        try:
            assert [other.grade(honest, {}, {"n": n}) for n in range(20)] == [*range(20)]
            same = "def grade(sample, item): return item['n']"
            assert [bombed.grade(same, {}, {"n": n}) for n in range(20)] == [*range(20)]
        finally:
            stop.set()
            bomber.join()
    assert rounds
    assert all(scores == [0.0, 0.0, 0.0] for scores in rounds)


@pytest.mark.parametrize("level", level_parameters())
def test_an_item_leaves_nothing_for_the_next_one(level: Level) -> None:
    source = """
import builtins, os, pathlib
def grade(sample, item):
    seen = len(os.listdir()) + hasattr(builtins, "left")
    builtins.left = True
    while True:
        os.mkdir("a")
        os.chdir("a")
        pathlib.Path("file").write_text("x")
        if not item["deep"]:
            return seen
"""
    with Sandbox(level) as sandbox:
        assert sandbox.grade(source, {}, {"deep": False}) == 0
        with pytest.raises(InvalidRequest, match="too deep"):
            sandbox.grade(source, {}, {"deep": True})
        assert sandbox.grade(source, {}, {"deep": False}) == 0


@pytest.mark.parametrize("level", level_parameters())
def test_what_is_left_of_a_limit(level: Level) -> None:
    limits = Limits(wall_seconds=1, memory_bytes=1 << 30, file_bytes=1 << 20)
    with Sandbox(level, limits) as sandbox:
        for source, words in (
            ("def grade(s, i):\n    while True: pass", "longer than 1 s"),
            ("import time\ndef grade(s, i): time.sleep(60)", "longer than 1 s"),
            ("def grade(s, i): open('x', 'wb').write(bytes(2 << 20))", "File too large"),
            ("def grade(s, i):\n    while True: print('x' * 1000)", "longer than 1 s"),
            ("import os\ndef grade(s, i): os.close(3); os._exit(0)", "ended with exit code 0"),
            ("import os\ndef grade(s, i): os.write(3, b'{\"score\": 1e999}'); os._exit(0)", "before it had answered"),
            ("import ctypes\ndef grade(s, i): ctypes.string_at(0)", "SIGSEGV"),
            ("import sys\ndef grade(s, i): sys.exit(1)", "SystemExit"),
        ):
            with pytest.raises(InvalidRequest, match=words) as caught:
                sandbox.grade(source, {}, {})
            assert len(caught.value.details["output"]) <= 65_536
        assert sandbox.grade("def grade(s, i): return 1", {}, {}) == 1


def test_a_level_that_does_not_hold_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def succeed(_target: Target) -> bool:
        return True

    monkeypatch.setattr("shared.sandbox.probe.ATTACKS", (succeed,))
    report = probe()
    assert report.level is None
    assert set(report.reasons) == {"bubblewrap", "landlock"}
    assert any("succeed (it succeeded)" in reason for reason in report.reasons.values())
