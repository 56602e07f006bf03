"""supervisord as `mens up` runs it, without the other programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFIG = """
[supervisord]
nodaemon = true
logfile = {folder}/log
logfile_maxbytes = 0
pidfile = {folder}/pid

[program:talks]
command = {python} -c "import os, time; [print(n, flush=True) or time.sleep(0.01) for n in range(20)]; os.kill(os.getppid(), 15); time.sleep(60)"
stdout_logfile = /dev/full
stdout_logfile_maxbytes = 0
"""


def test_full_disk_is_reported_once(tmp_path: Path) -> None:
    config = tmp_path / "supervisord.conf"
    config.write_text(CONFIG.format(folder=tmp_path, python=sys.executable))
    command = [sys.executable, "-m", "cli.standalone.supervise", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if "No space left" in line]
    assert lines == ["A log cannot be written: [Errno 28] No space left on device. Its lines are lost until it can."]
    assert "Traceback" not in done.stderr
