"""Number and placement of pods: autoscaling, disruption budgets, spread; and `helm test`."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import MINIMAL, SERVING, SEVERAL, Chart, Document, Values, of, pods

KEDA = "--api-versions=keda.sh/v1alpha1"
SCALED: Values = {
    **MINIMAL,
    "secret": {**MINIMAL["secret"], "metricsKey": "metrics-key-metrics-key"},
    "metrics": {"enabled": True},
    "worker": {"autoscaling": {"enabled": True, "maxReplicas": 5, "prometheusUrl": "http://prometheus:9090"}},
}


@pytest.fixture
def chart(helm: Any, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


def deployment(documents: list[Document], name: str) -> Document:
    (found,) = [each for each in of(documents, "Deployment") if each["metadata"]["name"] == name]
    spec: Document = found["spec"]
    return spec


def test_nothing_scales_by_itself_by_default(chart: Chart) -> None:
    documents = chart.render(MINIMAL, KEDA)
    assert not of(documents, "HorizontalPodAutoscaler") + of(documents, "ScaledObject")
    assert deployment(documents, "mens-api")["replicas"] == 2
    assert deployment(documents, "mens-worker")["replicas"] == 1


def test_autoscaler_alone_says_how_many_api_pods_there_are(chart: Chart) -> None:
    scaling = {"enabled": True, "minReplicas": 3, "maxReplicas": 9, "targetCpu": 60}
    documents = chart.render({**MINIMAL, "api": {"autoscaling": scaling}})
    (scaler,) = of(documents, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "mens-api"
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 9)
    assert scaler["spec"]["targetCPUUtilizationPercentage"] == 60
    # A number here would undo the autoscaler's at each upgrade.
    assert "replicas" not in deployment(documents, "mens-api")


def test_keda_scales_workers_by_queued_and_running_jobs(chart: Chart) -> None:
    documents = chart.render(SCALED, KEDA)
    (scaled,) = of(documents, "ScaledObject")
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"name": "mens-worker"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 5)
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 1}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metadata"]["serverAddress"]) == ("prometheus", "http://prometheus:9090")
    assert 'mens_jobs{namespace="ml",state=~"queued|running"}' in trigger["metadata"]["query"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert "replicas" not in deployment(documents, "mens-worker")


def test_query_names_states_and_labels_that_the_metric_has(root: Path) -> None:
    from shared.database.job_states import JobState

    assert {"queued", "running"} <= {state.value for state in JobState}
    assert '"mens_jobs"' in (root / "api/metrics/installation.py").read_text()
    assert 'labels=("kind", "state", "tenant")' in (root / "api/metrics/installation.py").read_text()


def test_without_keda_the_number_of_workers_stands(chart: Chart) -> None:
    documents = chart.render(SCALED)
    assert not of(documents, "ScaledObject")
    assert deployment(documents, "mens-worker")["replicas"] == 1


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({**SCALED, "metrics": {"enabled": False}}, "metrics.enabled"),
        ({**SCALED, "worker": {"autoscaling": {"enabled": True}}}, "worker.autoscaling.prometheusUrl"),
        ({**MINIMAL, "api": {"autoscaling": {"targetCpu": 0}}}, "api.autoscaling.targetCpu"),
        ({**MINIMAL, "api": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "topologyKey is required"),
    ],
)
def test_bad_values_are_refused(chart: Chart, values: Values, complaint: str) -> None:
    done = chart.run("template", "mens", values=values)
    assert done.returncode
    assert complaint in done.stderr


def test_drains_take_one_pod_of_a_tier_at_a_time(chart: Chart) -> None:
    documents = chart.render(SEVERAL)
    budgets = of(documents, "PodDisruptionBudget")
    names = {"mens-api", "mens-worker", SERVING, "mens-serving-large"}
    assert {budget["metadata"]["name"] for budget in budgets} == names
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        selector = budget["spec"]["selector"]["matchLabels"]
        labels = deployment(documents, budget["metadata"]["name"])["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
    assert not of(chart.render({**MINIMAL, "podDisruptionBudgets": False}), "PodDisruptionBudget")


def test_pods_of_a_tier_are_spread_among_themselves(chart: Chart) -> None:
    documents = chart.render(SEVERAL)
    for document in of(documents, "Deployment"):
        name, template = document["metadata"]["name"], document["spec"]["template"]
        constraints = template["spec"].get("topologySpreadConstraints", [])
        keys = [constraint["topologyKey"] for constraint in constraints]
        several = name != "mens-beat"
        assert keys == (["kubernetes.io/hostname", "topology.kubernetes.io/zone"] if several else []), name
        for constraint in constraints:
            assert constraint["labelSelector"]["matchLabels"] == template["metadata"]["labels"], name


def test_pods_are_placed_and_run_as_the_tiers_values_say(chart: Chart) -> None:
    values = {**MINIMAL, "image": {"pullSecrets": ["pull"]}}
    placed = {}
    for tier in ("api", "worker", "beat", "serving"):
        placed[tier] = {
            "nodeSelector": {"pool": tier},
            "tolerations": [{"key": tier, "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            **({} if tier == "beat" else {"runtimeClassName": f"{tier}-runtime"}),
        }
        values[tier] = {**values.get(tier, {}), **placed[tier]}
    for name, pod in pods(chart.render(values)):
        found = {key: pod.get(key) for key in placed.get(name, {})}
        assert found == placed.get(name, {}), name
        assert pod["imagePullSecrets"] == [{"name": "pull"}], name


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Health) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_helm_test_fails_with_what_it_looks_at(chart: Chart, server: str) -> None:
    (pod,) = of(chart.render(MINIMAL), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["http://mens-api:8000/ready", f"http://{SERVING}:8001/health"]
    program = [sys.executable, *container["command"][1:]]
    for paths, passes in ((["/ready"], True), (["/ready", "/health"], False)):
        urls = [server + path for path in paths]
        done = subprocess.run([*program, *urls], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode == 0) is passes, done.stderr
        assert f"{server}/ready 200" in done.stdout
