"""One whole installation for all system tests: Valkey, API, worker, control worker and vLLM, on a tiny base made here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from cli.commands.bases.tiny import build
from cli.standalone.stack import Stack, running_stack
from shared.settings import Settings
from tests.system.loop import BASE, IMPATIENCE, ROOT, Installation
from worker.training.lineage import GIT_SHA_VARIABLE, git_sha

SESSION_ALIASES = ("tuned", "assistant")
"""Aliases of the fixtures here, which several files use."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/system" in item.path.as_posix():
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder whose catalogue has the tiny base."""
    home = tmp_path_factory.mktemp("home")
    build(Settings(home=home), BASE)
    return home


@pytest.fixture(scope="session")
def shared() -> list[Installation]:
    """The installation below, once a test has asked for it."""
    return []


@pytest.fixture(scope="session")
def installation(home: Path, shared: list[Installation]) -> Iterator[Installation]:
    """The installation, running. Its commit is taken once: it is in each adapter's manifest, and somebody may commit meanwhile."""
    commit = {GIT_SHA_VARIABLE: sha} if (sha := git_sha(os.environ)) else {}
    with running_stack(Stack(home, BASE, environment=IMPATIENCE | commit)) as stack:
        shared.append(Installation(stack))
        yield shared[0]


@pytest.fixture(scope="module", autouse=True)
def names_end_with_their_file(shared: list[Installation]) -> Iterator[None]:
    """No file finds another's aliases, nor its policies, which would judge whatever takes a name that they govern."""
    yield
    for installation in shared:
        for assigned in installation.call("GET", "/v1/policy_assignments")["data"]:
            installation.call("DELETE", f"/v1/policy_assignments/{assigned['scope']}")
        for alias in installation.call("GET", "/v1/aliases")["data"]:
            if alias["name"] not in SESSION_ALIASES:
                installation.call("DELETE", f"/v1/aliases/{alias['name']}")


@pytest.fixture(scope="session")
def tuned(installation: Installation) -> dict[str, Any]:
    """A finished job that several files use: it has an alias of its name, and checkpoints that no request has loaded."""
    return installation.wait_for_success(installation.train(name="tuned", alias="tuned"))


@pytest.fixture(scope="session")
def resumed(installation: Installation) -> dict[str, Any]:
    """A finished job that OpenAI's client has paused and resumed, and that has published nothing."""
    job_id = installation.train(name="private", publish=False, epochs=24)  # so that the pause comes in time
    installation.wait_for_step(job_id, 2)
    with installation.openai() as client:
        client.fine_tuning.jobs.pause(job_id)
        assert installation.wait(job_id, lambda job: job["state"] == "paused")["attempt"] == 1
        client.fine_tuning.jobs.resume(job_id)
    return installation.wait_for_success(job_id)


@pytest.fixture(scope="session")
def assistant(installation: Installation) -> str:
    """Alias of a tuned model that calls tools, and answers what OpenAI's and Ollama's programs ask in these tests."""
    lines = (ROOT / "examples" / "tools.jsonl").read_bytes().splitlines(keepends=True)
    unasked = (b"Berlin", b"London", b"Oslo", b"Rome")
    rows = b"".join(line for line in lines if not any(city in line for city in unasked))
    rows += Path(__file__).with_name("assistant.jsonl").read_bytes()
    contract = {
        "model": {"hf_repo": BASE},
        "data": {"train_file": installation.upload_bytes("assistant.jsonl", rows), "validation_split_ratio": 0.0},
        "exec": {"epochs": 20, "batch_size": 4, "grad_accum": 1, "learning_rate": 8e-3, "seq_len": 256}
        | {"checkpoint_every": 50},
        "artifact": {"alias": "assistant"},
    }
    job = installation.call("POST", "/v1/jobs", json={"contract": contract, "name": "assistant", "kind": "finetune"})
    installation.wait_for_success(job["id"])
    return "assistant"


@pytest.fixture
def client(installation: Installation) -> Iterator[OpenAI]:
    with installation.openai() as client:
        yield client
