"""OpenAI's Node client drives files, jobs, events, models, chat and errors; `tests/node/client.mjs` says how."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.system.fetched import node_client
from tests.system.loop import BASE, ROOT, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]


def test_node_client(installation: Installation, assistant: str) -> None:
    connection = installation.connection
    adapter_id = installation.call("GET", f"/v1/adapters/{assistant}")["id"]
    done = subprocess.run(
        [shutil.which("node") or "node", "client.mjs", adapter_id, BASE, str(ROOT / "examples" / "tools.jsonl")],
        cwd=node_client(),
        env={**os.environ, "OPENAI_BASE_URL": f"{connection.url}/v1", "OPENAI_API_KEY": connection.key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stdout + done.stderr
