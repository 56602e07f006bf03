"""`mens up` as a user types it: it serves the named base until Ctrl-C, says what to type next, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import eventually
from tests.system.loop import ROOT, mens, processes_of

SECONDS = 240
QUESTION = "Where is the truth about a job kept?"


@contextmanager
def started(*arguments: str, home: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A running `mens up`, and the lines that it has printed so far."""
    command = [sys.executable, "-m", "cli.main", "up", *arguments]
    environment = {**os.environ, "MENS_HOME": str(home), "COLUMNS": "200"}
    lines: list[str] = []
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        reader = threading.Thread(target=lines.extend, args=(process.stdout,))
        reader.start()
        try:
            yield process, lines
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=SECONDS)
            reader.join()


def test_named_base_is_served_until_ctrl_c(home: Path, tmp_path: Path) -> None:
    added = mens("base", "add", "mine", str(home / "bases" / "mens-tiny"), home=tmp_path)
    assert added.returncode == 0, added.stdout + added.stderr
    with started("--base", "mine", "--port", "0", home=tmp_path) as (process, lines):
        eventually(
            lambda: process.poll() is not None or any("mens chat" in line for line in lines), SECONDS, "it is up"
        )
        assert process.poll() is None, "".join(lines)
        answer = mens("chat", "mine", QUESTION, "--max-tokens", "8", home=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "mens-tiny" not in mens("models", home=tmp_path).stdout, "a tiny base that nobody made is not served"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 0
    assert f"stopped. Jobs, models and files are kept in {tmp_path}; run the same command again" in "".join(lines)
    eventually(lambda: not processes_of(tmp_path), 20, "no process is left")
