"""The values files of the chart install unmodified, except for the catalogue: schema, policies, restricted pods."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shared.base_models.catalog import Catalog
from tests.support.helm_chart import (
    CATALOGS,
    CUSTOM,
    KUBERNETES,
    OPERATORS,
    Chart,
    Document,
    Values,
    environment,
    of,
    pods,
    values_file,
)
from tests.system.fetched import environment as program

VERSIONS = ("1.27", KUBERNETES, "1.37")
"""Of Kubernetes: what is still run, and the newest."""
LEFT_OUT = {
    "CKV_K8S_11": "a processor limit slows requests and training down for nothing; requests are there, and limits of memory",
    "CKV_K8S_35": "settings come from the environment; a secret's values are in no image, file or argument",
    "CKV_K8S_43": "digests of images that you build are yours to give: image.tag may hold none",
    "CKV_K8S_15": "the trial's images may be on the node only",
    "CKV_K8S_8": "a Job and the test's Pod end by themselves",
    "CKV_K8S_9": "workers have no Service; a Job and the test's Pod end by themselves",
}
"""Policies of checkov that the chart does not follow, and why."""


@pytest.fixture(params=CATALOGS)
def values(request: pytest.FixtureRequest) -> Values:
    return values_file(request.param)


@pytest.fixture
def documents(values: Values, helm: Any, tmp_path: Path) -> list[Document]:
    return Chart(helm, tmp_path).render(values, *OPERATORS)


def test_the_tests_catalogues_are_ones_that_the_api_reads() -> None:
    for catalog in CATALOGS.values():
        assert Catalog.model_validate(catalog).bases


@pytest.mark.parametrize(
    "version", [VERSIONS[0], *(pytest.param(later, marks=pytest.mark.long) for later in VERSIONS[1:])]
)
def test_every_file_renders_to_valid_kubernetes(documents: list[Document], version: str) -> None:
    known = [document for document in documents if document["kind"] not in CUSTOM]
    assert len(known) > 15
    for document in known:
        kubernetes_validate.validate(document, version, strict=True)


def test_an_old_server_can_apply_what_is_rendered(documents: list[Document]) -> None:
    """Server-side apply of Kubernetes 1.20 takes no number for a quantity, and no port of a Service without its protocol."""
    for name, pod in pods(documents):
        resources = pod["containers"][0]["resources"]
        assert all(isinstance(each, str) for of_kind in resources.values() for each in of_kind.values()), name
    assert all(port["protocol"] for service in of(documents, "Service") for port in service["spec"]["ports"])


@pytest.mark.long
def test_checkov_finds_nothing_else(helm: Any, tmp_path: Path) -> None:
    """In all files at once: it takes longer to start than to look at them. The policies that matter most: the test below."""
    for name in CATALOGS:
        folder = tmp_path / "rendered" / name
        folder.mkdir(parents=True)
        for number, document in enumerate(Chart(helm, tmp_path).render(values_file(name), *OPERATORS)):
            document["metadata"]["namespace"] = "ml"  # helm gives it when it installs
            (folder / f"{number}.yaml").write_text(yaml.safe_dump(document))
    command: list[str | Path] = [program("checkov"), "-m", "checkov.main", "--directory", tmp_path / "rendered"]
    more = ["--framework", "kubernetes", "--skip-download", "--quiet", "--compact", "--output", "json"]
    done = subprocess.run(
        [*command, *more, "--skip-check", ",".join(LEFT_OUT)], capture_output=True, text=True, timeout=120, check=False
    )
    report = json.loads(done.stdout)
    checks = report["results"]["failed_checks"]
    failed = {(each["check_id"], each["check_name"], each["resource"], each["file_path"]) for each in checks}
    assert not failed
    assert report["summary"]["passed"] > 300 * len(CATALOGS)


def test_every_pod_may_run_in_a_restricted_namespace(documents: list[Document]) -> None:
    """Pod Security Standards, profile "restricted"."""
    volumes = {"configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    assert {name for name, _ in pods(documents)} == {"api", "worker", "beat", "serving", "migration", "test"}
    for name, pod in pods(documents):
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod), name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        assert all(set(volume) - {"name"} <= volumes for volume in pod["volumes"]), name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert "privileged" not in security, name
            assert all("hostPort" not in port for port in container.get("ports", [])), name


def test_only_the_trial_has_a_shared_volume(values: Values, documents: list[Document]) -> None:
    shared = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, pod in pods(documents)
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"].get("readOnly")
    }
    in_bucket = "s3" in values.get("storage", {})
    assert shared == (set() if in_bucket else {"mens-data"})
    assert len(of(documents, "PersistentVolumeClaim")) == (0 if in_bucket else 1)


def test_without_a_network_nothing_looks_for_the_hub(helm: Any, tmp_path: Path) -> None:
    documents = Chart(helm, tmp_path).render(values_file("airgapped"), *OPERATORS)
    images = {container["image"] for _, pod in pods(documents) for container in pod["containers"]}
    assert all(image.startswith("registry.example.internal/") for image in images)
    for name, pod in pods(documents):
        if name not in {"migration", "test"}:
            assert environment(pod)["HF_HUB_OFFLINE"] == "1", name
            assert {"name": "models", "mountPath": "/models", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    for policy in of(documents, "NetworkPolicy"):
        assert "Egress" in policy["spec"]["policyTypes"]
        assert "0.0.0.0/0" not in json.dumps(policy)
