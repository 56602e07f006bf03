"""OpenAI's Node client drives files, jobs, events, models, chat and errors; the programs in `tests/node` say how."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.system.fetched import node_client
from tests.system.loop import ANSWER, BASE, QUESTION, ROOT, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

GPT = "gpt-3.5-turbo"


def run(installation: Installation, program: str, *arguments: str) -> str:
    """What a program prints that is given base URL and key as OpenAI's clients read them."""
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


def test_program_tunes_under_openais_name_of_a_base(installation: Installation) -> None:
    installation.call("PUT", f"/v1/names/{GPT}", json={"base": BASE, "reason": "for programs that name it"})
    printed = run(installation, "fine-tuning.mjs", GPT, str(ROOT / "examples" / "support.jsonl"), QUESTION)
    assert printed.startswith(f"created on {GPT}: ")
    assert f"succeeded on {GPT}\n" in printed
    assert "every row is trained on" in printed
    assert ANSWER in printed.splitlines()[-1]
