"""Third-party programs that the tests run: downloaded once into .tools/ (git-ignored), and only in the versions pinned
here.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.harness.command import PeerMissing
from bench.harness.fetched_folders import ROOT, fetched
from bench.harness.peers import isolated_python
from tests.support.debian_package import unpack_debian_package

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
NODE = ROOT / "tests" / "node"
CONSOLE = ROOT / "tests" / "console" / "node"
IDENTITY_PROVIDER = ROOT / "tests" / "console" / "provider"
CUSTOM_RESOURCES = ROOT / "tests" / "deploy" / "node"
OLLAMA = "ollama==0.6.3 --hash=sha256:6a20bc42c1a5f889295d7ec490d35e5132fc31f339561530f43a8abd4dbfe508"
ORAS = "oras==0.2.43 --hash=sha256:bf295b1cfb5017f579c35c3394c7a71707f6aff463cb6699d5d191a6d8b56ea6"
TRL = "trl==1.16.0 --hash=sha256:c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"
REGISTRY_PACKAGE = "docker-registry"
FETCH_SECONDS = 900
"""Limit of one fetch; Triton is 200 MB."""
EXAMPLES_VERSION = "3.51.0"
EXAMPLES_SHA256 = "1cc9b80eb0f1dc15fa45fbc122ba2c99b7e5302548060c01db5719fa6181a6a9"


def ollama_client() -> Path:
    """The folder of Ollama's Python client; what it needs is in the environment already."""
    return _python_package(OLLAMA)


def oras_client() -> Path:
    """The folder of ORAS' Python client, which copies between OCI layouts and registries; what it needs is in the environment already."""
    return _python_package(ORAS)


def published_templates() -> Path:
    """The folder of chat templates that models are published with, and of TRL's copies of them with marks of the answers,
    as its package has them.
    """
    return _python_package(TRL) / "trl" / "chat_templates"


def triton() -> Path:
    """The folder of Triton as `locks/worker.lock` pins it; its interpreter needs no GPU, and nothing besides it."""
    pin = re.search(r"^triton==(?:.*\\\n)*.*", (ROOT / "locks" / "worker.lock").read_text(), re.MULTILINE)
    assert pin
    return _python_package(pin[0])


def registry_server() -> Path:
    """The program of the registry of the CNCF's distribution project, as Debian packages it; apt checks Debian's signature."""
    return (
        fetched(REGISTRY_PACKAGE, lambda folder: unpack_debian_package(REGISTRY_PACKAGE, folder))
        / "usr"
        / "bin"
        / "docker-registry"
    )


def openai_examples() -> Path:
    """The folder of OpenAI's example programs, as the source of its Python client has them."""

    def unpack(folder: Path) -> None:
        pip("download", "--no-deps", "--no-binary", "openai", "--dest", str(folder), f"openai=={EXAMPLES_VERSION}")
        archive = folder / f"openai-{EXAMPLES_VERSION}.tar.gz"
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert found == EXAMPLES_SHA256, f"{archive.name} has sha256 {found}, not the expected {EXAMPLES_SHA256}"
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")
        archive.unlink()

    return fetched(f"openai-{EXAMPLES_VERSION}", unpack) / f"openai-{EXAMPLES_VERSION}" / "examples"


def environment(name: str) -> Path:
    """Return the interpreter of an environment with the packages that `locks/{name}.lock` pins, and no module of Mens."""
    try:
        return isolated_python(name)
    except PeerMissing as missing:
        pytest.fail(str(missing), pytrace=False)


def node_client() -> Path:
    """The folder of the programs in `tests/node`, with OpenAI's Node client as the lock file has it."""
    return _node_programs(NODE, "node-client")


def axe() -> Path:
    """axe-core, which finds what people with a screen reader, or without a mouse, could not use."""
    return console_programs() / "node_modules" / "axe-core" / "axe.min.js"


def console_programs() -> Path:
    """The folder of what checks the console: axe-core, TypeScript, and the types of the libraries that it has."""
    return _node_programs(CONSOLE, "console")


def identity_provider() -> Path:
    """The program of an identity provider that the OpenID Foundation has certified."""
    return _node_programs(IDENTITY_PROVIDER, "identity-provider") / "provider.mjs"


def custom_resource_schemas() -> Path:
    """Return the program that checks documents of operators' kinds, and their schemas, as the lock file pins them."""
    return _node_programs(CUSTOM_RESOURCES, "custom-resources") / "custom-resources.mjs"


def custom_resource_definitions() -> Path:
    """The program that prints definitions of operators' kinds, for an API server that shall know them."""
    return _node_programs(CUSTOM_RESOURCES, "custom-resources") / "definitions.mjs"


def _node_programs(source: Path, name: str) -> Path:
    """A copy of a folder's programs, with the packages that its lock file has."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail(f"{name} needs packages that come through npm: install npm (Debian: apt-get install npm)")

    def install(folder: Path) -> None:
        for file in ("package.json", "package-lock.json"):
            shutil.copy(source / file, folder)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder)

    lock = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = fetched(f"{name}-{lock}", install)
    for program in source.glob("*.mjs"):
        shutil.copy(program, folder)
    return folder


def _python_package(pin: str) -> Path:
    """The folder of one package without what it needs."""

    def install(folder: Path) -> None:
        requirements = folder.with_suffix(".txt")
        requirements.write_text(pin)
        pip("install", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(requirements))
        requirements.unlink()

    return fetched(pin.split(maxsplit=1)[0], install)


def pip(*arguments: str) -> None:
    run(*PIP, "--quiet", *arguments)


def run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}", pytrace=False)
