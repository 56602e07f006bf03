"""The notes of `helm install`: the next commands, and values that have no effect in this cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import MINIMAL, NO_SERVING, SERVING, Chart, Values, of

GATEWAY = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["mens.example"]}
KEDA: Values = {
    "secret": {**MINIMAL["secret"], "metricsKey": "metrics-key-metrics-key"},
    "metrics": {"enabled": True},
    "worker": {"autoscaling": {"enabled": True, "prometheusUrl": "http://prometheus:9090"}},
}


@pytest.fixture
def chart(helm: Any, tmp_path: Path, root: Path) -> Chart:
    """The chart with its notes in a ConfigMap: `helm template` does not print them."""
    folder = tmp_path / "mens"
    shutil.copytree(root / "deploy" / "helm", folder)
    templates = folder / "templates"
    notes = (templates / "NOTES.txt").read_text()
    (templates / "_notes.tpl").write_text('{{- define "notes" -}}' + notes + "{{- end -}}")
    (templates / "notes.yaml").write_text(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: notes, labels: {app.kubernetes.io/component: notes}}, "
        'data: {notes: {{ include "notes" . | toJson }}}}'
    )
    return Chart(helm, tmp_path, str(folder))


def notes(chart: Chart, values: Values, *more: str) -> str:
    configs = of(chart.render({**MINIMAL, **values}, *more), "ConfigMap")
    (found,) = [config["data"]["notes"] for config in configs if config["metadata"]["name"] == "notes"]
    assert "<no value>" not in found
    return str(found)


def test_notes_lead_to_the_first_key(chart: Chart) -> None:
    found = notes(chart, {})
    assert f"rollout status deploy/{SERVING} --timeout 30m   # qwen3-0.6b" in found
    assert "helm test mens --namespace ml" in found
    assert "kubectl --namespace ml exec deploy/mens-api -- python -m api.keys create admin" in found
    assert "port-forward service/mens-api 8000:8000" in found
    assert "The claim mens-data stays" in found


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"ingress": {"enabled": True, "host": "mens.example"}}, "MENS_API_URL=http://mens.example "),
        ({"ingress": {"enabled": True, "host": "mens.example", "tlsSecret": "tls"}}, "MENS_API_URL=https://mens.example "),
        ({"gateway": GATEWAY}, "MENS_API_URL=https://mens.example "),
    ],
)  # fmt: skip
def test_notes_have_the_address(chart: Chart, values: Values, address: str) -> None:
    found = notes(chart, values, "--api-versions=gateway.networking.k8s.io/v1")
    assert address in found
    assert "port-forward" not in found


def test_notes_report_what_has_no_effect_here(chart: Chart) -> None:
    found = notes(chart, KEDA)
    assert (
        "worker.autoscaling has no effect: the cluster has no keda.sh/v1alpha1. The number of workers stays 1 until"
        in found
    )
    assert "No PodMonitor and no alert rules" in found
    found = notes(chart, KEDA, "--api-versions=keda.sh/v1alpha1", "--api-versions=monitoring.coreos.com/v1")
    assert "no effect" not in found
    assert "No PodMonitor" not in found


def test_notes_without_serving_name_the_others(chart: Chart) -> None:
    found = notes(chart, {"serving": NO_SERVING["serving"]})
    assert "rollout status deploy/mens-api" in found
    assert "http://a:8001, http://b:8001" in found
