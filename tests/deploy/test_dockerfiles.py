"""Each image copies its own tier and shared/, runs as a numeric user and ships no build tool."""

import json
import re
import shlex
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.locks import pins, without_hash

TIERS = ["api", "worker", "serving"]
LOCKS = {"api": {"api"}, "worker": {"worker", "worker-cpu"}, "serving": {"serving", "serving-cpu"}}
"""The locks that each tier's image is installed from, by its variant."""
Instruction = tuple[str, str]


def instructions(root: Path, tier: str) -> list[Instruction]:
    text = re.sub(r"^\s*#.*\n", "", (root / tier / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    found = [line.split(maxsplit=1) for line in lines if line]
    return [(word, rest) for word, rest in found]


def last_stage(found: list[Instruction]) -> list[Instruction]:
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def copied(found: list[Instruction]) -> set[str]:
    """Return the paths that are copied from the build context, not from another stage."""
    words = [shlex.split(rest) for word, rest in found if word in {"COPY", "ADD"} and "--from=" not in rest]
    return {source for sources in words for source in sources[:-1] if not source.startswith("--")}


@pytest.mark.parametrize("tier", TIERS)
def test_hadolint_finds_nothing(root: Path, tier: str) -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, root / tier / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("tier", TIERS)
def test_image_holds_its_own_tier_and_shared_only(root: Path, tier: str) -> None:
    found = instructions(root, tier)
    locks = {f"locks/{lock}.lock" for lock in {*LOCKS[tier], "build"}}
    listed = {"scripts/console_components.py", "api/console/vendor/vendored.json"} if tier == "api" else set()
    assert copied(found) == {f"{tier}/", "shared/", "pyproject.toml", "LICENSE", *locks, *listed}
    assert copied(last_stage(found)) == {f"{tier}/", "shared/"}


@pytest.mark.parametrize("tier", TIERS)
def test_last_stage_runs_as_a_numeric_user(root: Path, tier: str) -> None:
    stage = last_stage(instructions(root, tier))
    assert [rest for word, rest in stage if word == "USER"] == ["10001:10001"]
    after = stage[[word for word, _ in stage].index("USER") :]
    assert not {"RUN", "COPY", "ADD"} & {word for word, _ in after}


@pytest.mark.parametrize("tier", TIERS)
def test_last_stage_has_no_uv_and_finds_the_code(root: Path, tier: str) -> None:
    stage = last_stage(instructions(root, tier))
    assert not [rest for word, rest in stage if word == "RUN" and re.search(r"\buv\b", rest)]
    assert "PYTHONPATH=/app" in " ".join(rest for word, rest in stage if word == "ENV")
    assert ("WORKDIR", "/app") in stage


@pytest.mark.parametrize("tier", TIERS)
def test_base_images_are_pinned_by_a_version(root: Path, tier: str) -> None:
    found = instructions(root, tier)
    stages = {rest.split()[-1] for word, rest in found if word == "FROM" and " AS " in rest}
    bases = {rest.split()[0] for word, rest in found if word == "FROM"} - stages
    assert bases <= {"python:3.11-slim-bookworm", "${VLLM_IMAGE}", "${VARIANT}"}
    chosen = dict(rest.split("=", 1) for word, rest in found if word == "ARG" and "=" in rest)
    assert chosen.get("VLLM_IMAGE", "vllm/vllm-openai:v0.32.0") == "vllm/vllm-openai:v0.32.0"
    if "${VARIANT}" in bases:
        assert chosen["VARIANT"] == "cuda"
        assert {"cpu", "cuda"} <= stages


@pytest.mark.parametrize("tier", TIERS)
def test_every_package_comes_from_a_lock_that_names_its_digest(root: Path, tier: str) -> None:
    """The one exception is torch's CPU build, which comes from an index of its own."""
    for lock in {*LOCKS[tier], "build"}:
        assert without_hash(lock) == ({"torch"} if lock.endswith("-cpu") else set()), lock
    installs = [
        command
        for word, rest in instructions(root, tier)
        if word == "RUN"
        for command in rest.split("&&")
        if re.search(r"\bpip (install|wheel)\b", command)
    ]
    assert installs
    for command in installs:
        # Resolved again, a lock would bring back what its overrides leave out, or be refused.
        assert "--no-deps" in command or "-r build.lock" in command, command


@pytest.mark.parametrize("tier", TIERS)
def test_image_says_what_it_is(root: Path, tier: str) -> None:
    labels = " ".join(rest for word, rest in instructions(root, tier) if word == "LABEL")
    found = dict(item.split("=", 1) for item in shlex.split(labels))
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    prefix = "org.opencontainers.image."
    assert found[f"{prefix}title"] == f"mens-{tier}"
    assert found[f"{prefix}version"] == version
    assert found[f"{prefix}revision"] == "$REVISION"
    assert found.keys() == {f"{prefix}{key}" for key in ("title", "description", "version", "revision", "base.name")}


@pytest.mark.parametrize(("tier", "port"), [("api", 8000), ("serving", 8001)])
def test_http_tier_has_a_health_check_on_its_port(root: Path, tier: str, port: int) -> None:
    stage = dict(last_stage(instructions(root, tier)))
    assert f"127.0.0.1:{port}/health" in stage["HEALTHCHECK"]
    assert stage["EXPOSE"] == str(port)


def test_kernels_can_be_compiled_and_are_kept(root: Path) -> None:
    """Triton compiles a launcher in C; /tmp, the home folder, is empty after each restart."""
    for tier in ("worker", "serving"):
        assert "TRITON_CACHE_DIR=/var/cache/mens/triton" in dict(last_stage(instructions(root, tier)))["ENV"], tier
        assert re.search(r"install -d -m 700 -o 10001 -g 10001 .*/var/cache/mens\b", runs(root, tier)), tier
    # vLLM's own image has one.
    assert "gcc libc6-dev" in runs(root, "worker")
    assert "VLLM_CACHE_ROOT=/var/cache/mens/vllm" in dict(last_stage(instructions(root, "serving")))["ENV"]


def test_image_of_serving_is_built_only_if_a_replica_can_be_imported(root: Path) -> None:
    assert re.search(r'python3 -c "from serving import .*\bvllm_server\b', runs(root, "serving"))


def runs(root: Path, tier: str) -> str:
    """The commands of the last stage."""
    return " ".join(rest for word, rest in last_stage(instructions(root, tier)) if word == "RUN")


def test_worker_asks_itself_through_the_broker(root: Path) -> None:
    stage = dict(last_stage(instructions(root, "worker")))
    assert "inspect ping" in stage["HEALTHCHECK"]
    assert "-d jobs@$HOSTNAME" in stage["HEALTHCHECK"]
    assert json.loads(stage["CMD"])[-1] == "jobs@%h"


@pytest.mark.parametrize("tier", TIERS)
def test_no_instruction_that_old_builders_refuse(root: Path, tier: str) -> None:
    text = (root / tier / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax=|<<-?['\"]?\w|--link\b", text, flags=re.MULTILINE)


def test_build_context_is_an_allow_list(root: Path) -> None:
    lines = [line for line in (root / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    folders, files = {"api", "worker", "serving", "shared", "locks"}, {"pyproject.toml", "LICENSE"}
    assert allowed == folders | files | {"scripts/console_components.py"}


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("api", ["api"]),
        ("worker", ["worker", "trackers"]),
        ("worker-cpu", ["worker", "trackers"]),
        ("serving-cpu", ["serving-cpu", "s3", "signatures"]),
    ],
)
def test_lock_fits_the_project(root: Path, lock: str, extras: list[str]) -> None:
    """A requirement that was added to pyproject.toml without refreshing the lock would be missed by the image only."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pinned = pins(lock)
    waiting = [*project["dependencies"], *(f"mens[{extra}]" for extra in extras)]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == "mens":
            for extra in requirement.extras:
                waiting.extend(project["optional-dependencies"][extra])
        else:
            name = canonicalize_name(requirement.name)
            assert name in pinned, f"locks/{lock}.lock lacks {requirement}: see locks/README.md"
            assert requirement.specifier.contains(pinned[name]), (
                f"locks/{lock}.lock has {name} {pinned[name]}, not {requirement}"
            )


@pytest.mark.parametrize("lock", sorted({lock for locks in LOCKS.values() for lock in locks}))
def test_images_run_the_tested_versions(lock: str) -> None:
    tested = {name: version.removesuffix("+cpu") for name, version in pins("cpu").items()}
    shared = {name: version.removesuffix("+cpu") for name, version in pins(lock).items() if name in tested}
    assert shared == {name: tested[name] for name in shared}
    if lock.endswith("-cpu"):
        assert shared.keys() == pins(lock).keys(), "nothing runs there that the tests do not run"


def test_serving_adds_exactly_its_lock_to_the_base_image(root: Path) -> None:
    (install,) = [
        rest for word, rest in instructions(root, "serving") if word == "RUN" and "python3 -m pip install" in rest
    ]
    words = shlex.split(install.split("&&")[0])
    assert set(words[words.index("/wheels") + 1 :]) == {"mens", *pins("serving")}
    assert {"--no-deps", "--no-index"} <= set(words)


def test_no_torch_in_the_control_plane() -> None:
    pinned = pins("api")
    assert "fastapi" in pinned
    assert not {name for name in pinned if re.match(r"torch|transformers|peft|bitsandbytes|vllm|nvidia-", name)}


def test_worker_trains_on_cuda() -> None:
    pinned = pins("worker")
    assert "+cpu" not in pinned["torch"]
    assert any(name.startswith("nvidia-") for name in pinned)


@pytest.mark.parametrize("lock", ["worker-cpu", "serving-cpu"])
def test_cpu_variant_has_no_gpu_library(lock: str) -> None:
    pinned = pins(lock)
    assert pinned["torch"].endswith("+cpu")
    assert not {name for name in pinned if re.match(r"nvidia-|cuda-|triton", name)}


def test_api_listens_where_a_service_can_reach_it(root: Path) -> None:
    assert "MENS_API_HOST=0.0.0.0" in (root / "api" / "Dockerfile").read_text()
