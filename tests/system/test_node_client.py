"""OpenAI's Node client drives files, jobs, events, models, chat, evals and errors; the programs in `tests/node` say how."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.fetched import node_client
from tests.system.loop import BASE, QUESTION, ROOT, Installation, short_lesson

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

GPT = "gpt-3.5-turbo"


def run(installation: Installation, program: str, *arguments: str) -> str:
    """Return the output of a program that gets base URL and key as OpenAI's clients read them."""
    connection = installation.connection
    done = subprocess.run(
        [shutil.which("node") or "node", program, *arguments],
        cwd=node_client(),
        env={**os.environ, "OPENAI_BASE_URL": f"{connection.url}/v1", "OPENAI_API_KEY": connection.key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_node_client(installation: Installation, assistant: str) -> None:
    adapter_id = installation.call("GET", f"/v1/adapters/{assistant}")["id"]
    printed = run(installation, "client.mjs", adapter_id, BASE, str(ROOT / "examples" / "tools.jsonl"))
    assert printed == "all is well\n"


def test_node_client_runs_an_eval(installation: Installation) -> None:
    assert run(installation, "evals.mjs", BASE) == "all is well\n"


def test_node_client_runs_graders_and_lends_a_checkpoint(installation: Installation, assistant: str) -> None:
    adapter_id = installation.call("GET", f"/v1/adapters/{assistant}")["id"]
    assert run(installation, "graders.mjs", adapter_id, "borrower", BASE) == "all is well\n"


def test_program_tunes_under_openais_name_of_a_base(installation: Installation, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"  # as many as OpenAI wants at least
    rows.write_bytes(b"".join(short_lesson().splitlines(keepends=True)[:10]))
    installation.call("PUT", f"/v1/names/{GPT}", json={"base": BASE, "reason": "for programs that name it"})
    printed = run(installation, "fine-tuning.mjs", GPT, str(rows), QUESTION)
    assert re.match(f"created on {GPT}: (queued|running)\n", printed), "the example stops at any other state"
    assert f"succeeded on {GPT} after " in printed
    assert "every row is trained on" in printed
    assert re.search(r"\n- \d{4}-\S+Z: Job succeeded", printed), "the last event is seen although the state has changed"
    assert re.search(r"^ft:\S+ answers$|^\S+@\S+ answers$", printed.splitlines()[-1])
