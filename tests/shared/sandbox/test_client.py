"""The sandbox as its callers see it: scores and errors, restarts, shutdown, and the same results everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import Code, InvalidRequest, MensError, TooLarge, Unavailable
from shared.sandbox.client import Sandbox
from shared.sandbox.environment import ROOT
from shared.sandbox.levels import MAX_SOURCE_BYTES, Level, Limits, SandboxReport
from tests.support.sandboxes import level_parameters
from tests.support.waiting import eventually

pytestmark = pytest.mark.sandbox

LENGTH = "def grade(sample, item):\n    return len(sample['output_text']) / item['most']"
SLEEP = "import time\ndef grade(sample, item):\n    time.sleep(60)"


@pytest.fixture(params=level_parameters(), scope="module")
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="module")
def sandbox(level: Level) -> Iterator[Sandbox]:
    with Sandbox(level, Limits(wall_seconds=60)) as opened:
        yield opened


def processes_of(sandbox: Sandbox) -> list[int]:
    """The fork server, and what it has forked."""
    assert sandbox._process
    first = sandbox._process.pid
    return [pid for pid in (first, *_children(first)) if _runs(pid)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_a_score(sandbox: Sandbox) -> None:
    assert sandbox.grade(LENGTH, {"output_text": "Ünï\ud800"}, {"most": 8}) == 0.5
    assert sandbox.grade("def grade(sample, item): return sample == item", {"a": [None, 1e300]}, {"a": [None, 1e300]})


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def grade(:", Code.GRADER_SOURCE_INVALID, "line 1: invalid syntax"),
        ("\0", Code.GRADER_SOURCE_INVALID, "null bytes"),
        ("(" * 100_000, Code.GRADER_SOURCE_INVALID, "nested parentheses"),
        ("grade = 1", Code.GRADER_SOURCE_INVALID, "not define a function"),
        ("import nothing_here", Code.GRADER_SOURCE_INVALID, "No module named 'nothing_here'"),
        ("def grade(sample, item): return sample['x']", Code.GRADER_FAILED, "KeyError: 'x'"),
        ("def grade(sample, item): return 'high'", Code.GRADER_FAILED, "'high', which is not a finite number"),
        ("def grade(sample, item): return float('nan')", Code.GRADER_FAILED, "not a finite number"),
        ("def grade(sample, item): return 10 ** 400", Code.GRADER_FAILED, "OverflowError"),
        ("#" * (MAX_SOURCE_BYTES + 1), Code.GRADER_SOURCE_INVALID, "more than 256000 bytes"),
    ],
)
def test_what_is_wrong_is_said(sandbox: Sandbox, source: str, code: Code, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        sandbox.grade(source, {}, {})
    assert caught.value.code == code


def test_a_traceback_begins_in_the_source_and_shows_its_lines_and_what_was_printed(sandbox: Sandbox) -> None:
    source = "def grade(sample, item):\n    print('so far')\n    return 1 / item['none']\n"
    with pytest.raises(InvalidRequest, match="ZeroDivisionError") as caught:
        sandbox.grade(source, {}, {"none": 0})
    lines = caught.value.details["traceback"].splitlines()
    assert lines[1:3] == ['  File "<grader>", line 3, in grade', "    return 1 / item['none']"]
    assert caught.value.details["output"] == "so far\n"


def test_a_source_is_checked_without_an_item(sandbox: Sandbox) -> None:
    sandbox.check(LENGTH)
    with pytest.raises(InvalidRequest, match="not define a function"):
        sandbox.check("x = 1")


def test_items_that_are_too_long_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(TooLarge):
        sandbox.grade(LENGTH, {"output_text": "x" * (65 << 20)}, {"most": 1})


def test_answers_are_the_same_on_every_machine(sandbox: Sandbox) -> None:
    """Hashes, randomness, time zone, locale and threads do not differ; two newly forked processes agree."""
    source = """
import locale, os, random, time
def grade(sample, item):
    assert time.tzname[0] == "UTC" and os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert locale.setlocale(locale.LC_ALL, "") == "C.UTF-8"
    return hash("mens") % 1000 + random.random()
"""
    here = sandbox.grade(source, {}, {})
    with Sandbox(sandbox.level) as other:
        assert other.grade(source, {}, {}) == here
        assert other.grade(source, {}, {}) == here


def test_files_and_folders_may_be_made_for_a_while(sandbox: Sandbox) -> None:
    source = """
import os, tempfile
def grade(sample, item):
    os.umask(os.umask(0))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        os.makedirs(folder + "/a/b")
        return file.write(b"x")
"""
    assert sandbox.grade(source, {}, {}) == 1


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deeply_nested_items_are_not_a_failure_of_the_sandbox(sandbox: Sandbox, depth: int) -> None:
    item: list[object] = []
    for _ in range(depth):
        item = [item]
    try:
        assert sandbox.grade("def grade(sample, item): return 1", {}, {"x": item}) == 1
    except TooLarge as error:
        assert error.code == Code.GRADER_TEXT_TOO_LONG


def test_what_is_graded_cannot_say_that_the_sandbox_has_failed(sandbox: Sandbox) -> None:
    source = 'import os\ndef grade(sample, item):\n    os.write(3, b\'{"error": "server"}\')\n    os._exit(0)'
    with pytest.raises(InvalidRequest, match="before it had answered"):
        sandbox.grade(source, {}, {})


def test_installed_packages_may_be_used(sandbox: Sandbox) -> None:
    source = """
import numpy as np
from nltk.translate.bleu_score import sentence_bleu
from rapidfuzz import fuzz, utils
def grade(sample, item):
    alike = fuzz.WRatio(sample["output_text"], item["reference_answer"], processor=utils.default_process) / 100.0
    return np.float32(alike + sentence_bleu([["a"] * 5], ["a"] * 5) - 1)
"""
    found = sandbox.grade(
        source, {"output_text": "fuzzy wuzzy was a bear"}, {"reference_answer": "wuzzy fuzzy was a bear"}
    )
    assert found == pytest.approx(0.95)


def test_several_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda n: sandbox.grade(LENGTH, {"output_text": "x" * n}, {"most": 1}), range(24))
        assert [*found] == [*range(24)]
    # One that is not kept ends by itself, a moment after its last item.
    eventually(
        lambda: len(processes_of(sandbox)) <= 4,
        what="of each grader at most as many processes are kept as items run at once",
    )


def test_a_sandbox_whose_processes_are_killed_continues(level: Level) -> None:
    with Sandbox(level) as sandbox:
        assert sandbox.grade(LENGTH, {"output_text": "x"}, {"most": 1}) == 1
        first, *graders = processes_of(sandbox)
        for pid in (*graders, first):
            os.kill(pid, signal.SIGKILL)
        assert sandbox.grade(LENGTH, {"output_text": "x"}, {"most": 1}) == 1
        assert processes_of(sandbox)[0] != first


def test_one_that_is_killed_again_and_again_is_the_sandboxs_fault(level: Level) -> None:
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.05):
            for pid in processes_of(sandbox)[1:]:
                if _children(pid):
                    os.kill(pid, signal.SIGKILL)

    with Sandbox(level) as sandbox:
        sandbox.start()
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with pytest.raises(Unavailable) as caught:
                sandbox.grade(SLEEP, {}, {})
        finally:
            stop.set()
            killer.join()
    assert (caught.value.code, caught.value.retryable) == (Code.SANDBOX_FAILED, True)


def test_closing_ends_what_is_in_flight_and_every_process(level: Level) -> None:
    sandbox = Sandbox(level)
    errors: list[MensError] = []

    def wait() -> None:
        try:
            sandbox.grade(SLEEP, {}, {})
        except MensError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    sandbox.start()
    waiting.start()
    eventually(lambda: len(processes_of(sandbox)) > 1)
    pids = processes_of(sandbox)
    began = time.monotonic()
    sandbox.close()
    waiting.join(40)
    assert not waiting.is_alive()
    assert time.monotonic() - began < 40, "it does not wait for the grader"
    assert errors[0].code == Code.SANDBOX_FAILED
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with pytest.raises(Unavailable, match="it was closed"):
        sandbox.grade(LENGTH, {"output_text": ""}, {"most": 1})


PARENT = f"""
import threading
from shared.sandbox.client import Sandbox
sandbox = Sandbox("LEVEL")
sandbox.start()
threading.Thread(target=sandbox.grade, args=({SLEEP!r}, {{}}, {{}})).start()
print(sandbox._process.pid, flush=True)
"""


def test_everything_ends_with_the_process_that_opened_it(level: Level) -> None:
    program = PARENT.replace("LEVEL", level)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout
    with parent:
        first = int(parent.stdout.readline())
        eventually(lambda: [each for child in _children(first) for each in _children(child)])
        pids = [first, *_children(first), *(each for child in _children(first) for each in _children(child))]
        parent.kill()
    eventually(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_where_nothing_contains_code_none_is_opened() -> None:
    with pytest.raises(InvalidRequest, match="bubblewrap is not installed") as caught:
        Sandbox.open(SandboxReport(None, {"bubblewrap": "bubblewrap is not installed"}))
    assert caught.value.code == Code.SANDBOX_UNAVAILABLE


def test_sandboxes_that_share_the_memory_have_no_more_of_it_for_files_than_one(level: Level) -> None:
    report = SandboxReport(level)
    with Sandbox.open(report, parallel=1, share=4) as one:
        assert 4 * one.limits.tmpfs_bytes <= Limits().tmpfs_bytes
        if level == "bubblewrap":
            size = "import os\ndef grade(sample, item):\n    found = os.statvfs('.')\n    return found.f_blocks * found.f_frsize"
            assert one.grade(size, {}, {}) == one.limits.tmpfs_bytes
