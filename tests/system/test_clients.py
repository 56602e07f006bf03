"""Third-party clients use a real installation, each in its own environment; see `tests/clients/`."""

from __future__ import annotations

import os
import subprocess
import uuid

import pytest

from tests.system.fetched import environment
from tests.system.loop import BASE, ROOT, Installation

pytestmark = pytest.mark.network

LOCKS = ("clients-openai1", "clients-openai2", "clients-openai3", "checkers")
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "ANONYMIZED_TELEMETRY": "false"}
"""Settings that keep a client from using the internet."""


@pytest.mark.parametrize(
    ("lock", "client"),
    [
        ("clients-openai1", "openai"),
        ("clients-openai2", "openai"),
        ("clients-openai3", "openai"),
        ("clients-openai2", "litellm"),
        ("clients-openai2", "langchain"),
        ("clients-openai2", "llama_index"),
        ("clients-openai2", "instructor"),
        ("clients-openai3", "pydantic_ai"),
    ],
)
def test_client(installation: Installation, assistant: str, lock: str, client: str) -> None:
    connection = installation.connection
    limits = {"name": f"limited {uuid.uuid4().hex}", "role": "viewer", "requests_per_minute": 1}
    limited = installation.call("POST", "/v1/keys", json=limits)["secret"]
    done = subprocess.run(
        [environment(lock), ROOT / "tests" / "clients" / f"with_{client}.py", assistant, BASE, limited],
        env={**os.environ, **OFFLINE, "OPENAI_BASE_URL": f"{connection.url}/v1", "OPENAI_API_KEY": connection.key},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-6_000:]
    assert done.stdout.endswith("all is well\n")


@pytest.mark.parametrize("lock", LOCKS)
def test_environment_of_clients_has_no_model_framework(lock: str) -> None:
    pins = {line.partition("==")[0] for line in (ROOT / "locks" / f"{lock}.lock").read_text().splitlines()}
    assert pins
    assert not pins & {"torch", "transformers", "vllm", "triton"}
