"""`mens demo` on SmolLM2-135M-Instruct, as `make demo` runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.standalone.smollm2 import FILE_NAME
from tests.support.smollm2 import smollm2_gguf
from tests.support.waiting import eventually
from tests.system.loop import mens, processes_of


@pytest.mark.long  # a hundred steps of a real model
@pytest.mark.timeout(1500)
def test_demo_tunes_a_real_model(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / FILE_NAME).symlink_to(smollm2_gguf())
    done = mens("demo", home=tmp_path, timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adapter tickets@" in done.stdout
    assert re.search(r"JSON with these four fields *│ *0 of 24 *│ *2[0-4] of 24", done.stdout), done.stdout
    eventually(lambda: not processes_of(tmp_path), 20, "no process is left")
