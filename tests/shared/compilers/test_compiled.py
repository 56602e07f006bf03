"""A compiler decides whether a text is code; it executes only its own programs, and no process of it outlives the
check.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.compilers.compiled import Compilation, run_compiler
from shared.compilers.compiler import Compiler, find_compiler
from shared.compilers.probe import TAKEN_OVER
from shared.errors import Code, MensError, Unavailable
from shared.sandbox.client import Sandbox
from shared.sandbox.environment import ROOT
from shared.sandbox.levels import MAX_OUTPUT_BYTES, Limits
from tests.support.compilers import CONTAINED, READS, WITH_GCC, processes_of, taken_over
from tests.support.sandboxes import run_as_nobody
from tests.support.waiting import eventually

pytestmark = [pytest.mark.sandbox, CONTAINED]

SECRET = "int 4815162342;\n"
STAYS = "import os, time\nif os.fork() == 0:\n    while True: time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    limits = Limits(wall_seconds=60, memory_bytes=1 << 30, file_bytes=1 << 20, tmpfs_bytes=128 << 20)
    with Sandbox("bubblewrap", limits) as opened:
        yield opened


def run(text: str, sandbox: Sandbox, compiler: Compiler | None = None) -> Compilation:
    return run_compiler(compiler or taken_over(), text, sandbox)


def c(text: str, sandbox: Sandbox, language: str = "c") -> Compilation:
    compiler = find_compiler(language)
    assert compiler
    return run_compiler(compiler, text, sandbox)


def test_a_text_is_code_when_the_compiler_takes_it(sandbox: Sandbox) -> None:
    assert run("x = 1\n", sandbox, READS) == Compilation(0, "")
    refused = run("x = = 1\n", sandbox, READS)
    assert not refused.compiles
    assert "SyntaxError: invalid syntax" in refused.output
    assert not run("x = '\ud800'\n", sandbox, READS).compiles, "a text that is no UTF-8 is the compiler's to refuse"


@WITH_GCC
@pytest.mark.parametrize(
    ("language", "text", "compiles"),
    [
        ("c", '#include <stdio.h>\nint main(void) { printf("x"); return 0; }', True),
        ("c", "int main(void) { return x; }", False),
        ("c", "#error no\n", False),
        ("c++", "#include <vector>\nint main() { std::vector<int> v{1}; return v.front(); }", True),
        ("c++", "int main() { return std::move(1); }", False),
    ],
)
def test_gcc_reads_c(sandbox: Sandbox, language: str, text: str, compiles: bool) -> None:
    assert c(text, sandbox, language).compiles == compiles


@WITH_GCC
def test_a_text_does_not_make_the_compiler_show_a_file(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    tmp_path.chmod(0o755)
    text = f'#include "{tmp_path}/secret"\n'
    plain = subprocess.run(
        ["gcc", "-fsyntax-only", "-xc", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert SECRET.strip() in plain.stderr, "without a sandbox its complaint quotes the file"
    found = c(text, sandbox)
    assert "No such file" in found.output
    assert SECRET.strip() not in found.output


@WITH_GCC
def test_a_text_that_never_ends_is_ended(sandbox: Sandbox) -> None:
    hurried = Sandbox("bubblewrap", replace(sandbox.limits, wall_seconds=2))
    endless = "#include __FILE__\n" * 2
    assert not c(endless, hurried).compiles
    assert not c("int f(" * 100_000, hurried).compiles
    assert not c('#include "/dev/zero"\n', hurried).compiles


def test_it_executes_its_own_programs_and_no_other(sandbox: Sandbox, tmp_path: Path) -> None:
    text = """
import os, shutil, subprocess, sys
own = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
assert own.stdout == b"1\\n"
for path in ("/bin/sh", "/usr/bin/env", OTHER):
    try:
        subprocess.run([path], check=False)
    except OSError:
        continue
    raise SystemExit(f"it has executed {path}")
with open(os.path.realpath(sys.executable), "rb") as program, open(os.open("own", os.O_CREAT | os.O_WRONLY, 0o755), "wb") as own:
    shutil.copyfileobj(program, own)
try:
    os.execv("own", ["own", "-c", "1"])
except OSError:
    print("held")
"""
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    smaller = Sandbox("bubblewrap", replace(sandbox.limits, file_bytes=64 << 20))
    found = run(f"OTHER = {str(other)!r}\n{text}", smaller)
    assert (found.exit_code, found.output) == (0, "held\n")


def test_its_folders_are_bound_to_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "library").write_text("x")
    (tmp_path / "library").chmod(0o666)
    text = f"""
assert open("{tmp_path}/library").read() == "x"
for path in ("library", "new"):
    try:
        open("{tmp_path}/" + path, "w")
    except OSError as error:
        continue
    raise SystemExit("written")
"""
    compiler = taken_over()
    assert run(text, sandbox, replace(compiler, folders=(*compiler.folders, str(tmp_path)))) == Compilation(0, "")
    assert not run(text, sandbox, compiler).compiles, "what is not bound is not there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["library"]


def test_its_environment_is_the_same_everywhere_but_for_its_own_variables(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_API_KEY", "secret")
    compiler = replace(taken_over(), variables=(("OWN", "1"),))
    text = "import os\nprint(os.environ.get('OWN'), os.environ['TZ'], 'MENS_API_KEY' in os.environ)"
    assert run(text, sandbox, compiler) == Compilation(0, "1 UTC False\n")


def test_files_may_be_moved_between_its_own_folders_as_rustc_does(sandbox: Sandbox) -> None:
    text = "import os\nos.mkdir('a')\nopen('a/x', 'w').close()\nos.rename('a/x', 'x')\nos.rename('x', '/dev/null')"
    found = run(text, sandbox)
    assert found.output.splitlines()[-1].endswith("'x' -> '/dev/null'")


def test_nothing_is_left_for_the_next_text(sandbox: Sandbox) -> None:
    text = "import os\nassert os.listdir() == [os.path.basename(__file__)]\nopen('left', 'w')\nos.mkdir('folder')"
    assert run(text, sandbox) == Compilation(0, "")
    assert run(text, sandbox) == Compilation(0, "")


def test_processes_that_are_left_behind_end(sandbox: Sandbox, tmp_path: Path) -> None:
    plain, compiler = taken_over(), taken_over()
    (tmp_path / plain.file).write_text(STAYS)
    subprocess.run([*plain.command], cwd=tmp_path, check=True)
    (left,) = eventually(lambda: processes_of(plain), what="without a sandbox the process stays")
    os.kill(left, 9)
    assert run(STAYS, sandbox, compiler) == Compilation(0, "")
    assert processes_of(compiler) == []


@pytest.mark.parametrize(
    ("text", "seconds", "words"),
    [
        pytest.param("while True: pass", 2, "longer than 2 s", marks=pytest.mark.long),
        ("import os\nos.close(1), os.close(2)\nimport time\ntime.sleep(60)", 2, "longer than 2 s"),
        ("while True: print('x' * 1000)", 2, "longer than 2 s"),
        (
            "import os, time\nfor _ in range(5): os.fork()\nheld = b'x' * (64 << 20)\ntime.sleep(60)",
            60,
            "more than 256 MB",
        ),
    ],
)
def test_all_its_processes_together_have_an_items_limits(sandbox: Sandbox, text: str, seconds: int, words: str) -> None:
    compiler = taken_over()
    limited = Sandbox("bubblewrap", replace(sandbox.limits, wall_seconds=seconds, memory_bytes=256 << 20))
    found = run(text, limited, compiler)
    assert found.exit_code is None
    assert words in found.output
    assert processes_of(compiler) == []


def test_what_one_process_may_take(sandbox: Sandbox) -> None:
    for text, words in (
        ("import mmap\nmmap.mmap(-1, 2 << 30)", "Cannot allocate memory"),
        ("open('x', 'wb').write(bytes(2 << 20))", "File too large"),
        ("[open(f'x{n}', 'wb').write(bytes(1 << 20)) for n in range(100)]", "No space left"),
        (
            "[open(f'x{n}', 'wb') for n in range(100)]; files = [open(__file__) for _ in range(100)]",
            "Too many open files",
        ),
        ("import os, time\nwhile True:\n    if not os.fork(): time.sleep(60)", "Resource temporarily unavailable"),
    ):
        found = run(text, sandbox)
        assert words in found.output
        assert found.exit_code == 1
    assert len(run("print('x' * 1_000_000)", sandbox).output) == MAX_OUTPUT_BYTES
    assert run("import ctypes; ctypes.string_at(0)", sandbox).exit_code == 128 + 11


def test_neighbours_do_not_notice_a_compiler_that_is_taken_over(sandbox: Sandbox) -> None:
    """Other items of the same sandbox, and a process next to it, continue while one item forks, fills its disk and
    takes memory.
    """
    stop, ended = threading.Event(), []
    bomb = """
import os
for number in range(100):
    with open(f"filling{number}", "wb") as file:
        try: file.write(bytes(1 << 20))
        except OSError: break
while True:
    try: os.fork()
    except OSError: held = [bytes(8 << 20) for _ in range(100)]
"""

    def attack() -> None:
        while not stop.is_set():
            ended.append(run(bomb, sandbox).exit_code)

    honest = "def grade(sample, item):\n    open('own', 'wb').write(bytes(1 << 20))\n    return item['n']"
    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        assert [sandbox.grade(honest, {}, {"n": n}) for n in range(40)] == [*range(40)]
        beside = [
            subprocess.run([sys.executable, "-S", "-c", "print(1)"], capture_output=True, check=True) for _ in range(5)
        ]
        assert [found.stdout for found in beside] == [b"1\n"] * 5
    finally:
        stop.set()
        attacker.join()
    assert ended
    assert 0 not in ended


def test_a_compiler_cannot_say_that_the_sandbox_has_failed(sandbox: Sandbox) -> None:
    text = """
import os
for descriptor in range(3, 64):
    try: os.write(descriptor, b"failed")
    except OSError: continue
    raise SystemExit(f"{descriptor} is open")
os._exit(1)
"""
    assert run(text, sandbox) == Compilation(1, "")


def test_one_that_does_not_start_is_not_a_verdict_about_the_text(sandbox: Sandbox) -> None:
    absent = Compiler(("/usr/bin/there-is-no-such-compiler", "main.x"), "main.x")
    with pytest.raises(Unavailable, match="FileNotFoundError") as failed:
        run("x", sandbox, absent)
    assert failed.value.code == Code.SANDBOX_FAILED


def test_closing_the_sandbox_ends_it(sandbox: Sandbox) -> None:
    compiler, closing = taken_over(), Sandbox("bubblewrap", sandbox.limits)
    errors: list[MensError] = []

    def wait() -> None:
        try:
            run("import time\ntime.sleep(60)", closing, compiler)
        except MensError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: processes_of(compiler))
    began = time.monotonic()
    closing.close()
    waiting.join(40)
    assert time.monotonic() - began < 40, "it does not wait for the compiler"
    assert [error.code for error in errors] == [Code.SANDBOX_FAILED]
    assert processes_of(compiler) == []


def test_it_ends_with_the_process_that_started_it() -> None:
    compiler = taken_over()
    program = f"""
from shared.compilers.compiled import run_compiler
from shared.compilers.compiler import Compiler
from shared.sandbox.client import Sandbox
run_compiler({compiler!r}, "import time\\ntime.sleep(600)", Sandbox("bubblewrap"))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        eventually(lambda: processes_of(compiler))
        parent.kill()
    eventually(lambda: not processes_of(compiler))


AS_NOBODY = """
import sys
from shared.compilers.compiled import run_compiler
from shared.compilers.probe import TAKEN_OVER
from shared.sandbox.client import Sandbox
text = "import os, subprocess, sys\\nsubprocess.run([sys.executable, '-c', 'print(os.getuid())'.replace('os', '__import__(\\"os\\")')], check=True)"
print(run_compiler(TAKEN_OVER, text, Sandbox(sys.argv[1])))
"""


def test_a_user_without_rights_has_compilers_too() -> None:
    ran = run_as_nobody(AS_NOBODY, level="bubblewrap")
    assert "exit_code=0" in ran.stdout, ran.stdout + ran.stderr


def test_root_gives_each_compiler_a_user_of_its_own(sandbox: Sandbox) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    first, second = (int(run("import os\nprint(os.getuid())", sandbox).output) for _ in range(2))
    assert first != second
    assert 0 not in (first, second)
    assert TAKEN_OVER.command[0] == sys.executable
