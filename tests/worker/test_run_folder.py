"""Logs of a run folder, as stored with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.run_folder import LOG_BYTES, LOG_NAME, read_log_end, without_folders


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('  File "/opt/mens/worker/train.py", line 3, in main', '  File "…/train.py", line 3, in main'),
        ("/srv/a b/c/plan.json: no such file", "…/a b/c/plan.json: no such file"),
        ("home=/home/alice/mens,runs=/srv/mens/runs/x", "home=…/mens,runs=…/x"),
        ("[rank0]:/srv/a/b.py and cwd:/srv/mens/x/y.py", "[rank0]:…/b.py and cwd:…/y.py"),
        ("PATH=/a/b:/c/d", "PATH=…/b:…/d"),
        ("http://127.0.0.1:8000/v1/models", "http://127.0.0.1:8000/v1/models"),
        ("file:///srv/mens/models/base", "…/base"),
        (
            "https://hub.example.org/a/b/c and ./a/b and ~/c/d and 3/4",
            "https://hub.example.org/a/b/c and ./a/b and ~/c/d and 3/4",
        ),
        ("/tmp is full", "/tmp is full"),
    ],
)
def test_folders_of_absolute_paths_are_left_out(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_log_is_cut_at_a_line(tmp_path: Path) -> None:
    assert read_log_end(tmp_path) == "", "there is none"
    (tmp_path / LOG_NAME).write_bytes(b"short\n\xff")
    assert read_log_end(tmp_path) == "short\n\N{REPLACEMENT CHARACTER}"
    (tmp_path / LOG_NAME).write_text("".join(f"line {number:08}\n" for number in range(10_000)))
    kept = read_log_end(tmp_path)
    assert LOG_BYTES - 14 <= len(kept) <= LOG_BYTES
    assert kept.startswith("line 0000") and kept.endswith("line 00009999\n")
