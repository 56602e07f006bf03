"""The compose file, built and started by a container daemon: our images with PostgreSQL, Valkey and a bucket, up to an
answer of a tuned model.

``MENS_TEST_CONTAINERS=1 pytest tests/deploy/test_compose_running.py -s`` runs it: it needs a daemon, some 15 GB of disk and the images
that the file names. ``MENS_TEST_TORCH_BACKEND=`` (empty) gets torch from the index that uv in the base image is
configured to use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from cli.standalone.ports import free_port
from tests.support.compose import ROOT, SECRETS, compose
from tests.support.locks import pins

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("MENS_TEST_CONTAINERS"), reason="builds and starts images: MENS_TEST_CONTAINERS=1"
    ),
    pytest.mark.timeout(3600),
]
BASE = "mens-tiny"
BUILD_SECONDS, START_SECONDS = 3000, 600
OURS = {"api", "worker-cpu", "beat-cpu", "serving-cpu"}
QUESTION, ANSWER = "Where is the truth about a job kept?", "The database row is the truth about a job."
OVERRIDE = """
x-cpu: &cpu {{build: {{args: {{TORCH_BACKEND: "{torch_backend}"}}}}, volumes: ["{models}:/models:ro"]}}
services:
  api:
    volumes: ["{models}:/models:ro"]
    ports: !override ["127.0.0.1:{port}:8000"]
  worker-cpu: *cpu
  beat-cpu: *cpu
  serving-cpu: *cpu
"""


@dataclass(frozen=True)
class Running:
    """The project that compose has started.

    Attributes:
        override: file that is used in addition to the repository's own.
        environment: environment of compose.
        port: port of the API on this machine.
    """

    override: Path
    environment: dict[str, str]
    port: int

    def compose(self, *arguments: str, seconds: float = 60) -> str:
        """Run a command of compose, which must succeed; returns its stdout."""
        files = ["--project-name", "mens-test", "--file", str(self.override)]
        done = compose(*files, *arguments, env=self.environment, seconds=seconds)
        assert done.returncode == 0, f"{arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return done.stdout

    def inspect(self) -> dict[str, dict[str, Any]]:
        """Return the daemon's description of each container, by the name of its service."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = json.loads(subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True).stdout)
        return {container["Config"]["Labels"]["com.docker.compose.service"]: container for container in found}

    def mens(self, key: str, *arguments: str) -> str:
        """Run ``mens`` on the host, as a user of this installation would; returns its stdout."""
        given = {"MENS_API_URL": f"http://127.0.0.1:{self.port}", "MENS_API_KEY": key, "COLUMNS": "200"}
        command = [sys.executable, "-m", "cli.main", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("compose")
    environment = {"MENS_HOME": str(folder / "home")}
    subprocess.run(
        [sys.executable, "-m", "cli.main", "base", "build", BASE], cwd=ROOT, env=os.environ | environment, check=True
    )
    catalog = json.loads((folder / "home" / "catalog.json").read_text())
    catalog["bases"][0]["source"]["path"] = f"/models/{BASE}"
    (folder / "catalog.json").write_text(json.dumps(catalog))
    subprocess.run(["chmod", "-R", "a+rX", folder, folder.parent], check=True)  # the containers' user reads them

    port, override = free_port(), folder / "override.yml"
    backend = os.environ.get("MENS_TEST_TORCH_BACKEND", "cpu")
    override.write_text(OVERRIDE.format(models=folder / "home" / "bases", port=port, torch_backend=backend))
    found = Running(
        override,
        SECRETS
        | {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}
        | {"COMPOSE_PROFILES": "cpu", "MENS_CATALOG_FILE": str(folder / "catalog.json"), "MENS_SERVING_BASE": BASE}
        | {"MENS_SERVING_MAX_MODEL_LEN": "512"},
        port,
    )
    try:
        found.compose("build", seconds=BUILD_SECONDS)
        found.compose("up", "--wait", seconds=START_SECONDS)
        yield found
    finally:
        print(found.compose("logs", "--no-color", "--tail", "40")[-20000:])
        found.compose("down", "--volumes", "--timeout", "20", seconds=200)


def test_containers_are_healthy_and_confined(running: Running) -> None:
    containers = running.inspect()
    for name in OURS:
        container = containers[name]
        assert container["State"]["Health"]["Status"] == "healthy", name
        assert container["HostConfig"]["ReadonlyRootfs"], name
        assert container["Config"]["User"] == "10001:10001", name
        uid = running.compose("exec", name, "sh", "-c", "id -u; touch /app/x 2>&1 || true").split("\n")
        assert uid[0] == "10001", name
        assert "Read-only file system" in uid[1], name
    for name in ("migrate", "bucket"):
        assert containers[name]["State"]["ExitCode"] == 0, name


@pytest.mark.parametrize("service", ["api", "worker-cpu", "serving-cpu"])
def test_image_has_the_packages_of_its_lock_and_a_list_of_them(running: Running, service: str) -> None:
    locked = pins(service)
    code = "import importlib.metadata as m; print(*{f'{d.name} {d.version}' for d in m.distributions()}, sep='\\n')"
    installed = dict(line.split() for line in running.compose("exec", service, "python", "-c", code).splitlines())
    versions = {str(canonicalize_name(name)): version for name, version in installed.items()}
    assert versions.pop("mens")
    assert versions == locked
    listed = json.loads(running.compose("exec", service, "cat", "sbom.cdx.json"))["components"]
    assert {canonicalize_name(component["name"]) for component in listed} == {*locked}


def test_a_row_becomes_an_answer(running: Running) -> None:
    key = running.compose("exec", "api", "python", "-m", "api.keys", "create", "admin").split()[-1]
    said = running.mens(key, "train", str(ROOT / "examples" / "support.jsonl"), "--model", BASE, "--alias", "support")
    assert "alias    support points to it" in said
    assert ANSWER in running.mens(key, "chat", "support", QUESTION)
    assert "I do not know that yet" in running.mens(key, "chat", BASE, QUESTION)


def test_serving_answers_through_the_api_only(running: Running) -> None:
    address = running.inspect()["serving-cpu"]["NetworkSettings"]["Networks"].popitem()[1]["IPAddress"]
    code = f"import urllib.request as r; r.urlopen('http://{address}:8001/v1/models')"
    done = compose("--project-name", "mens-test", "--file", str(running.override), "exec", "worker-cpu", "python", "-c", code,
                   env=running.environment)  # fmt: skip
    assert "401" in done.stderr, "without the key of the serving tier there is no answer"
    assert running.inspect()["serving-cpu"]["HostConfig"]["PortBindings"] in ({}, None)
