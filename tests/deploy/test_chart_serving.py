"""Serving in the chart: a Deployment for each base model, its settings, and the DNS names of its replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import MINIMAL, SERVING, SEVERAL, Chart, Document, environment, of, pods


@pytest.fixture
def chart(helm: Any, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


def test_serving_name_has_every_pods_address(chart: Chart) -> None:
    for values, count in ((MINIMAL, 2), (SEVERAL, 3)):
        services = [s for s in of(chart.render(values), "Service") if "-serving" in s["metadata"]["name"]]
        assert len(services) == count, "one of each model, and one of all"
        for service in services:
            assert service["spec"]["clusterIP"] == "None"
            assert [port["port"] for port in service["spec"]["ports"]] == [8001], "a headless Service maps no ports"


def serving_settings(chart: Chart, **values: Any) -> dict[str, Any]:
    documents = chart.render({**MINIMAL, "serving": {**MINIMAL["serving"], **values}})
    (pod,) = [pod for name, pod in pods(documents) if name == "serving"]
    found = environment(pod)
    return {name.removeprefix("MENS_SERVING_"): value for name, value in found.items() if "_SERVING_" in name}


def test_replica_is_ready_when_its_engine_has_answered(chart: Chart) -> None:
    """The route is 503 until the replica's own test has an answer of the loaded model (tests/serving/middleware/test_self_test.py)."""
    (found,) = [pod["containers"][0] for name, pod in pods(chart.render(MINIMAL)) if name == "serving"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"] == {"path": "/health", "port": "http"}, probe
    assert found["ports"] == [{"name": "http", "containerPort": 8001}]
    startup = found["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800, (
        "a large base is downloaded and loaded meanwhile"
    )
    from serving.middleware.guard import OPEN_ROUTES

    assert ("GET", "/health") in OPEN_ROUTES, "a probe has no key"


def test_new_pod_does_not_wait_for_the_gpu_of_the_old_one(chart: Chart) -> None:
    for document in of(chart.render(SEVERAL), "Deployment"):
        if "nvidia.com/gpu" in document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]:
            rolling = document["spec"]["strategy"]["rollingUpdate"]
            assert rolling == {"maxSurge": 0, "maxUnavailable": 1}, document["metadata"]["name"]


def test_unset_serving_settings_are_chosen_by_the_replica(chart: Chart) -> None:
    found = serving_settings(chart)
    assert found["MAX_LORA_RANK"] == found["MAX_CPU_LORAS"] == found["LORA_MEMORY_BYTES"] == ""
    assert found["QUANTIZATION"] == found["TOOL_PARSER"] == found["REASONING_PARSER"] == ""
    assert (found["DEVICE"], found["GPU_MEMORY_UTILIZATION"], found["MAX_LORAS"]) == ("cuda", "0.9", "4")


def test_serving_settings_reach_the_replica(chart: Chart) -> None:
    found = serving_settings(
        chart,
        maxLoraRank=64,
        maxCpuLoras=32,
        loraMemoryBytes=68719476736,
        tensorParallel=2,
        pipelineParallel=2,
        quantization="mxfp4",
        toolParser="hermes",
        resources={"limits": {"memory": "256Gi", "nvidia.com/gpu": 4}},
    )
    assert (found["MAX_LORA_RANK"], found["MAX_CPU_LORAS"], found["LORA_MEMORY_BYTES"]) == ("64", "32", "68719476736")
    assert (found["TENSOR_PARALLEL"], found["PIPELINE_PARALLEL"]) == ("2", "2")
    assert (found["QUANTIZATION"], found["TOOL_PARSER"]) == ("mxfp4", "hermes")


def test_every_serving_value_of_the_chart_is_a_setting(chart: Chart) -> None:
    from serving.settings import ServingSettings

    assert {f"serving_{name.lower()}" for name in serving_settings(chart)} <= ServingSettings.model_fields.keys()


def test_each_model_has_pods_and_settings_of_its_own(chart: Chart) -> None:
    found = {name: (replicas, pod) for name, replicas, pod in serving_pods(chart.render(SEVERAL))}
    assert {name: replicas for name, (replicas, _) in found.items()} == {SERVING: 2, "mens-serving-large": 1}
    small, large = (found[name][1] for name in (SERVING, "mens-serving-large"))
    assert (environment(small)["MENS_SERVING_BASE"], environment(large)["MENS_SERVING_BASE"]) == (
        "qwen3-0.6b",
        "Qwen/Qwen3-32B",
    )
    assert (environment(small)["MENS_SERVING_MAX_MODEL_LEN"], environment(large)["MENS_SERVING_MAX_MODEL_LEN"]) == (
        "4096",
        "8192",
    )
    limits = [pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in (small, large)]
    assert limits == ["1", "4"]
    assert "nodeSelector" not in small
    assert large["nodeSelector"] == {"gpu": "h200"}
    assert small["tolerations"] == SEVERAL["serving"]["tolerations"]
    assert "tolerations" not in large, "a value of the model's takes the place of the one of all"


def serving_pods(documents: list[Document]) -> list[tuple[str, int, Document]]:
    """Name, replicas and pod of each serving Deployment."""
    return [
        (document["metadata"]["name"], document["spec"]["replicas"], document["spec"]["template"]["spec"])
        for document in of(documents, "Deployment")
        if "-serving-" in document["metadata"]["name"]
    ]
