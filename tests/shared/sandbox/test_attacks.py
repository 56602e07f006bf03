"""Every attack succeeds without a sandbox and fails at every level, as root and as another user; other graders are not
affected.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from shared.errors import InvalidRequest
from shared.sandbox import confinement
from shared.sandbox.attacks import ATTACKS, Target, source_of
from shared.sandbox.client import DISKS_OF_ITEM, Sandbox
from shared.sandbox.levels import Level, Limits
from shared.sandbox.probe import attack, probe, targets
from tests.support.bombs import grade_unconfined, neighbours_of_bombs
from tests.support.sandboxes import NOBODY, level_parameters, run_as_nobody
from tests.support.waiting import eventually

pytestmark = pytest.mark.sandbox

AttackFunction = Callable[[Target], bool]
BY_NAME = pytest.mark.parametrize("attempt", ATTACKS, ids=lambda attempt: str(attempt.__name__))
PROBE_PROGRAM = """
import json, sys
from shared.sandbox.probe import probe
print(json.dumps(probe(sys.argv[1]).as_dict()))
"""
UNCONFINED_PROGRAM = """
import json, os
from shared.sandbox.attacks import ATTACKS, source_of
from shared.sandbox.probe import targets
from tests.support.bombs import grade_unconfined
with targets() as target:
    print(json.dumps([os.getuid(), {each.__name__: grade_unconfined(source_of(each), target) for each in ATTACKS}]))
"""
NEIGHBOURS_PROGRAM = """
import sys
from tests.support.bombs import neighbours_of_bombs
print(neighbours_of_bombs(sys.argv[1]))
"""


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setenv("OF_THE_PARENT", "secret")
    with targets() as found:
        yield found


@BY_NAME
def test_without_a_sandbox_it_succeeds(attempt: AttackFunction, target: Target) -> None:
    assert grade_unconfined(source_of(attempt), target) == 1.0


def test_without_a_sandbox_it_succeeds_as_a_user_without_rights_too() -> None:
    ran = run_as_nobody(UNCONFINED_PROGRAM, level="landlock")
    assert ran.returncode == 0, ran.stderr
    uid, scores = json.loads(ran.stdout)
    assert (uid, scores) == (NOBODY, {attempt.__name__: 1.0 for attempt in ATTACKS})


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
    assert {each["name"] for each in report["attacks"] if each["held"]} == {attempt.__name__ for attempt in ATTACKS}


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
    assert neighbours_of_bombs(level) == "undisturbed"


@pytest.mark.parametrize("level", level_parameters())
def test_neighbours_of_a_user_without_rights_do_not_notice_bombs(level: Level) -> None:
    ran = run_as_nobody(NEIGHBOURS_PROGRAM, level=level)
    assert ran.stdout == "undisturbed\n", ran.stderr


HOLD = """
import time
def grade(sample, item):
    kept = []
    for number in range(60):
        try:
            kept.append(open(f"file{number}", "w+b", buffering=0))
            if item["removed"]:
                import os
                os.unlink(f"file{number}")
            while kept[-1].write(bytes(1 << 20)): pass
        except OSError:
            continue
    time.sleep(0.5)
    return 1
"""


@pytest.mark.parametrize("level", level_parameters())
@pytest.mark.parametrize("removed", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_item_that_fills_its_disk_leaves_others_theirs(level: Level, removed: bool) -> None:
    """Removed files that are still open are not visible in the folder; the file system limits their size."""
    limits = Limits(wall_seconds=60, memory_bytes=1 << 30, file_bytes=4 << 20, tmpfs_bytes=64 << 20)
    honest = "def grade(sample, item):\n    open('own', 'wb').write(bytes(4 << 20))\n    return item['n']"
    stop, ended = threading.Event(), []

    def fill(sandbox: Sandbox) -> None:
        while not stop.is_set():
            ended.append(sandbox.grade(HOLD, {}, {"removed": removed}))

    with Sandbox(level, limits) as sandbox:
        filler = threading.Thread(target=fill, args=(sandbox,))
        filler.start()
        try:
            # Until it has filled what it can, once.
            eventually(lambda: ended)
            assert [sandbox.grade(honest, {}, {"n": n}) for n in range(60)] == [*range(60)]
        finally:
            stop.set()
            filler.join()


@pytest.mark.parametrize("level", level_parameters())
def test_a_file_system_is_used_again_after_its_grader_was_left(level: Level) -> None:
    """Graders that die one after another while their disk is full leave the next grader an empty disk.

    The time limit is not tested here: it would apply to the next grader too, which may miss it on a busy machine.
    """
    limits = Limits(wall_seconds=60, memory_bytes=1 << 30, file_bytes=4 << 20, files=16, tmpfs_bytes=16 << 20)
    fill = (
        "import ctypes\ndef grade(sample, item):\n    for n in range(5):\n"
        "        try: open(str(n), 'wb', buffering=0).write(bytes(4 << 20))\n"
        "        except OSError: pass\n    ctypes.string_at(0)"
    )
    with Sandbox(level, limits, parallel=1) as sandbox:
        for number in range(2 * DISKS_OF_ITEM):
            with pytest.raises(InvalidRequest, match="SIGSEGV"):
                sandbox.grade(f"{fill}  # {number}", {}, {})
            source = f"def grade(sample, item): return open('own', 'wb').write(bytes(4 << 20))  # {number}"
            assert sandbox.grade(source, {}, {}) == 4 << 20


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
    limits = Limits(wall_seconds=60, memory_bytes=1 << 30, file_bytes=1 << 20)
    hurried = replace(limits, wall_seconds=1)
    with Sandbox(level, limits) as sandbox, Sandbox(level, hurried) as hurrying:
        for source in (
            "def grade(s, i):\n    while True: pass",
            "import time\ndef grade(s, i): time.sleep(60)",
            "def grade(s, i):\n    while True: print('x' * 1000)",
        ):
            with pytest.raises(InvalidRequest, match="longer than 1 s") as caught:
                hurrying.grade(source, {}, {})
            assert len(caught.value.details["output"]) <= 65_536
        for source, words in (
            ("def grade(s, i): open('x', 'wb').write(bytes(2 << 20))", "File too large"),
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
