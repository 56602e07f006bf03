"""The deletion of a model in a whole installation: refused while it is needed, then removed everywhere, and trained
again.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from tests.system.loop import ANSWER, BASE, Installation

SECONDS = 150.0


def train(installation: Installation) -> dict[str, Any]:
    return installation.wait_for_success(installation.train(name="going", alias="going"))


def folders(installation: Installation, adapter_id: str) -> list[Path]:
    """All that is left of an adapter on disk, in the storage and in the replica's private folder."""
    return list(installation.stack.home.glob(f"st*/adapters/{adapter_id.partition('@')[2]}")) + list(
        installation.stack.home.glob(f"serving-cache/*/{adapter_id.partition('@')[2]}")
    )


def wait_until_deleted(installation: Installation, adapter_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        record = installation.call("GET", f"/v1/adapters/{adapter_id}")
        if record["state"] == "deleted":
            return dict(record)
        time.sleep(0.2)
    raise AssertionError(f"still {record['state']} after {SECONDS} s")


@pytest.mark.long  # its steps by themselves: tests/api/routes/test_deletion.py, tests/worker/test_adapter_removal.py, tests/vllm/test_unload.py
@pytest.mark.timeout(400)
def test_model_is_deleted_everywhere_and_can_be_trained_again(installation: Installation, client: OpenAI) -> None:
    job = train(installation)
    adapter_id, checkpoint = job["result"]["adapter_id"], job["result"]["adapters"][0]
    assert ANSWER in installation.ask("going")
    assert len(folders(installation, adapter_id)) == 2
    with installation.connection.client() as http:
        refused = http.delete(f"/v1/models/{adapter_id}")
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (409, "MODEL_IN_USE")
    assert "'going'" in refused.json()["error"]["message"]
    installation.call("DELETE", "/v1/aliases/going")

    deleted = client.models.delete(adapter_id)
    assert (deleted.id, deleted.object, deleted.deleted) == (adapter_id, "model", True)
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model=adapter_id, messages=[{"role": "user", "content": "Hello?"}])
    kill_the_control_worker(installation)
    record = wait_until_deleted(installation, adapter_id)
    assert record["job_id"] == job["id"]
    assert folders(installation, adapter_id) == []
    assert ask_the_replica(installation, adapter_id).status_code == 404
    for model in (BASE, checkpoint):
        assert installation.ask(model)

    again = train(installation)
    assert again["result"]["adapter_id"] == adapter_id
    assert ANSWER in installation.ask(adapter_id)
    assert installation.call("GET", f"/v1/adapters/{adapter_id}")["state"] == "published"


def kill_the_control_worker(installation: Installation) -> None:
    """Kill the process that carries deletions out; supervisord starts it again."""
    os.kill(installation.stack.pid("control"), signal.SIGKILL)


def ask_the_replica(installation: Installation, model: str) -> httpx.Response:
    """A request past the API."""
    settings = installation.stack.settings
    headers = {"Authorization": f"Bearer {settings['MENS_SERVING_KEY']}"}
    body = {"model": model, "prompt": "a", "max_tokens": 1}
    return httpx.post(f"{settings['MENS_SERVING_URLS']}/v1/completions", headers=headers, json=body, timeout=30)
