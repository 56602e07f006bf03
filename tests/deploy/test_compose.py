"""The compose file is consistent in both profiles, and only the API is reachable, only from this machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import REQUIRED, SECRETS, compose

Service = dict[str, Any]
PROFILES = ["gpu", "cpu"]
OURS = {"migrate", "api", "worker", "beat", "serving"}
THEIRS = {"postgres", "valkey", "s3", "bucket"}
COMPLETED, HEALTHY = "service_completed_successfully", "service_healthy"


@pytest.fixture(scope="module", params=PROFILES)
def services(request: pytest.FixtureRequest) -> dict[str, Service]:
    """The services of a profile, by the name of the tier."""
    done = compose("--profile", request.param, "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = {name.removesuffix("-cpu"): service for name, service in json.loads(done.stdout)["services"].items()}
    assert set(found) == OURS | THEIRS
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_file_is_valid_without_warnings(profile: str) -> None:
    done = compose("--profile", profile, "config", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_value_is_named(name: str) -> None:
    done = compose("config", "-q", env={key: value for key, value in REQUIRED.items() if key != name})
    assert done.returncode != 0
    assert f"required variable {name} is missing a value: " in done.stderr


def test_other_settings_come_from_a_file_that_cannot_override(root: Path, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text((root / "docker-compose.yml").read_text())
    (tmp_path / "mens.env").write_text("MENS_LEASE_SECONDS=30\nMENS_HOME=/elsewhere\n")
    done = compose("--profile", "cpu", "config", "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, service in json.loads(done.stdout)["services"].items():
        given = service.get("environment") or {}
        assert given.get("MENS_LEASE_SECONDS") == ("30" if name.removesuffix("-cpu") in OURS else None), name
        assert given.get("MENS_HOME") != "/elsewhere"


def test_no_secret_is_written_in_the_file(root: Path) -> None:
    text = (root / "docker-compose.yml").read_text()
    for name in SECRETS:
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_only_the_api_is_published_and_on_loopback(services: dict[str, Service]) -> None:
    published = {
        (name, port["host_ip"], port["published"])
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    assert published == {("api", "127.0.0.1", "8000")}
    assert {name: service.get("network_mode") for name, service in services.items() if "network_mode" in service} == {
        "bucket": "service:s3"
    }


def test_our_services_are_confined(services: dict[str, Service]) -> None:
    for name in OURS:
        service = services[name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "user" not in service, name  # the image's numeric user stands


def test_everything_starts_in_order(services: dict[str, Service]) -> None:
    waits = {
        (name, other): how["condition"]
        for name, service in services.items()
        for other, how in (service.get("depends_on") or {}).items()
    }
    expected = {("migrate", "postgres"): HEALTHY, ("bucket", "s3"): HEALTHY, ("serving", "bucket"): COMPLETED}
    for name in ["api", "worker", "beat"]:
        expected |= {(name, "migrate"): COMPLETED, (name, "bucket"): COMPLETED, (name, "valkey"): HEALTHY}
    assert waits == expected
    # The images of api, worker and serving bring their own health check; the control worker goes by another name.
    assert all("healthcheck" in services[name] for name in ["postgres", "valkey", "s3", "beat"])
    assert "control@$$HOSTNAME" in services["beat"]["healthcheck"]["test"][-1]


def test_no_volume_is_mounted_twice(services: dict[str, Service], root: Path) -> None:
    mounts = [
        (name, mount["source"], mount["target"])
        for name, service in services.items()
        for mount in service.get("volumes") or []
    ]
    assert len({source for _, source, _ in mounts}) == len(mounts)
    assert {name for name, _, _ in mounts} == {*OURS, *THEIRS} - {"migrate", "bucket"}
    # A new volume takes its owner from the image's folder of that path.
    for name, _, target in mounts:
        if name in OURS:
            dockerfile = (root / name.replace("beat", "worker") / "Dockerfile").read_text()
            assert re.search(rf"install -d .*-o 10001 .*{target}\b", dockerfile), (name, target)
    assert "--appendonly yes" in " ".join(services["valkey"]["command"])


def test_what_the_engine_loads_is_written_by_serving_alone(services: dict[str, Service]) -> None:
    private = services["serving"]["environment"]["MENS_SERVING_CACHE_DIR"]
    assert private in {mount["target"] for mount in services["serving"]["volumes"]}


def test_serving_may_read_the_bucket_and_not_write_to_it(services: dict[str, Service]) -> None:
    done = compose("config", "--format", "json")
    identities = json.loads(json.loads(done.stdout)["configs"]["identities"]["content"])["identities"]
    allowed = {
        one["credentials"][0]["accessKey"]: (one["credentials"][0]["secretKey"], one["actions"]) for one in identities
    }
    for name, writes in [("api", True), ("worker", True), ("beat", True), ("serving", False)]:
        given = services[name]["environment"]
        bucket = given["MENS_S3_BUCKET"]
        secret, actions = allowed[given["AWS_ACCESS_KEY_ID"]]
        assert given["AWS_SECRET_ACCESS_KEY"] == secret
        assert set(actions) == {f"Read:{bucket}", f"List:{bucket}"} | ({f"Write:{bucket}"} if writes else set())
    assert f"-name {bucket} " in services["bucket"]["command"][0]


def test_store_is_reached_by_its_s3_port_alone(services: dict[str, Service]) -> None:
    options = dict(option.lstrip("-").partition("=")[::2] for option in services["s3"]["command"][1:])
    assert options["ip"] == options["ip.bind"] == "127.0.0.1"
    assert services["api"]["environment"]["MENS_S3_ENDPOINT"] == f"http://s3:{options['s3.port']}"


def test_serving_holds_no_key_of_the_control_plane(services: dict[str, Service]) -> None:
    assert not {"MENS_DATABASE_URL", "MENS_BROKER_URL"} & set(services["serving"]["environment"])


def test_profiles_differ_in_images_and_devices_alone() -> None:
    found = {}
    for profile in PROFILES:
        done = compose("--profile", profile, "config", "--format", "json")
        found[profile] = {
            name.removesuffix("-cpu"): {key: value for key, value in service.items() if key != "profiles"}
            for name, service in json.loads(done.stdout)["services"].items()
        }
    for name, cpu in found["cpu"].items():
        gpu = found["gpu"][name]
        differing = {key for key in cpu.keys() | gpu.keys() if cpu.get(key) != gpu.get(key)}
        if name in {"worker", "beat", "serving"}:
            assert cpu["image"] == f"{gpu['image']}-cpu"
            assert cpu["build"]["args"] == {"VARIANT": "cpu"}
            assert "deploy" not in cpu
            differing -= {"image", "build", "deploy"}
        if name == "serving":
            assert cpu["environment"] == gpu["environment"] | {"MENS_SERVING_DEVICE": "cpu"}
            differing -= {"environment"}
        assert not differing, name
    assert "nvidia" in json.dumps(found["gpu"]["worker"]["deploy"])
    assert "serving" in found["cpu"]["serving"]["networks"]["default"]["aliases"]


def test_one_gpu_is_divided_between_worker_and_serving(root: Path) -> None:
    """With the values of the documentation. Fails while a machine with one GPU is asked for a second one."""
    [lines] = re.findall(r"```\n(MENS_SERVING_GPU=0\n.*?)```", (root / "docs" / "gpu.md").read_text(), re.DOTALL)
    given = dict(line.split("=") for line in lines.split())
    done = compose("--profile", "gpu", "config", "--format", "json", env=REQUIRED | given)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    reserved = [found[name]["deploy"]["resources"]["reservations"]["devices"] for name in ("worker", "serving")]
    assert [[device["device_ids"] for device in devices] for devices in reserved] == [[["0"]], [["0"]]]
    replica = float(found["serving"]["environment"]["MENS_SERVING_GPU_MEMORY_UTILIZATION"])
    assert replica + float(found["worker"]["environment"]["MENS_TRAINER_GPU_SHARE"]) == pytest.approx(1)


def test_unset_serving_settings_are_chosen_by_the_replica(services: dict[str, Service]) -> None:
    """An empty variable is an open setting; every one of them is a setting."""
    from serving.settings import ServingSettings

    given = {name: value for name, value in services["serving"]["environment"].items() if "_SERVING_" in name}
    assert given["MENS_SERVING_MAX_LORA_RANK"] == given["MENS_SERVING_MAX_CPU_LORAS"] == ""
    assert {name.removeprefix("MENS_").lower() for name in given} <= ServingSettings.model_fields.keys()
    assert ServingSettings(**{name.removeprefix("MENS_").lower(): value for name, value in given.items()})


def test_second_base_of_the_documentation_is_a_service_of_its_own(root: Path, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text((root / "docker-compose.yml").read_text())
    (example,) = re.findall(r"```yaml\n(services:.*?)```", (root / "docs" / "serving.md").read_text(), re.DOTALL)
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(example)
    urls = "http://serving:8001,http://serving-large:8001"
    given = ["--file", str(override), "--profile", "gpu", "config", "--format", "json"]
    done = compose(*given, env={**REQUIRED, "MENS_SERVING_URLS": urls}, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    first, second = found["serving"], found["serving-large"]
    bases = [service["environment"].pop("MENS_SERVING_BASE") for service in (first, second)]
    assert bases == [REQUIRED["MENS_SERVING_BASE"], "qwen3-32b"]
    assert first["environment"] == second["environment"]
    assert (first["image"], first["volumes"]) == (second["image"], second["volumes"])
    assert [service["networks"]["default"]["aliases"] for service in (first, second)] == [
        ["serving"],
        ["serving-large"],
    ]
    devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in (first, second)]
    assert devices == [["1"], ["2"]]
    for name in ("api", "worker", "beat"):
        assert found[name]["environment"]["MENS_SERVING_URLS"] == urls, name
