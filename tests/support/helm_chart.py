"""The chart in tests: rendered by helm, its smallest values, and queries of the rendered documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = "1.32"
Values = dict[str, Any]
Document = dict[str, Any]


def base(name: str, **source: str) -> Values:
    """An entry of the catalogue."""
    return {"name": name, "source": source, "digests": {"model.safetensors": "0" * 64}}


MINIMAL: Values = {
    "secret": {
        "databaseUrl": "postgresql+psycopg://mens:database-password@postgres/mens",
        "brokerUrl": "redis://:broker-password@valkey:6379/0",
        "servingKey": "serving-key-serving-key",
    },
    "catalog": {"version": 1, "bases": [base("qwen3-0.6b", kind="hub", repo="Qwen/Qwen3-0.6B", revision="c" * 40)]},
    "serving": {"models": [{"base": "qwen3-0.6b"}]},
}
SERVING = "mens-serving-qwen3-0-6b"
"""Name of its serving objects."""
SEVERAL: Values = {
    **MINIMAL,
    "catalog": {"version": 1, "bases": [*MINIMAL["catalog"]["bases"], base("Qwen/Qwen3-32B", kind="hub")]},
    "serving": {
        "urls": ["http://a:8001"],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "models": [
            {"base": "qwen3-0.6b", "replicas": 2},
            {
                "base": "Qwen/Qwen3-32B",
                "name": "large",
                "tensorParallel": 4,
                "maxModelLen": 8192,
                "nodeSelector": {"gpu": "h200"},
                "tolerations": [],
                "resources": {
                    "requests": {"cpu": "8", "memory": "64Gi"},
                    "limits": {"memory": "256Gi", "nvidia.com/gpu": 4},
                },
            },
        ],
    },
}
"""Values with two base models, the second on other nodes, and a server outside the release."""
NO_SERVING: Values = {**MINIMAL, "serving": {"urls": ["http://a:8001", "http://b:8001"]}}


ROOT = Path(__file__).parents[2]
OPERATORS = [
    f"--api-versions={version}"
    for version in ("gateway.networking.k8s.io/v1", "keda.sh/v1alpha1", "monitoring.coreos.com/v1")
]
"""Arguments of ``helm template`` for a cluster that has every optional kind."""
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
"""Kinds that Kubernetes itself does not know."""
_HUB = MINIMAL["catalog"]
ON_A_CLAIM = {"version": 1, "bases": [base("qwen3-0.6b", kind="local", path="/models/qwen3-0.6b")]}
CATALOGS: dict[str, Values] = {"trial": _HUB, "production": _HUB, "airgapped": ON_A_CLAIM}
"""Catalogues, by the values file for which they are used."""


def values_file(name: str) -> Values:
    """A values file with its catalogue, as `-f values-….yaml -f values-catalog.yaml` has them."""
    found: Values = yaml.safe_load((ROOT / "deploy" / "helm" / f"values-{name}.yaml").read_text())
    return {**found, "catalog": CATALOGS[name]}


RENDERED: dict[str, str] = {}
"""Documents that helm has rendered in this process, by chart and arguments: each rendering takes half a second."""


class Chart:
    """Runs helm on a chart, by default the project's own, with values from a dict."""

    def __init__(self, helm: Any, folder: Path, chart: str = "deploy/helm") -> None:
        self._helm, self._folder, self._chart = helm, folder, chart

    def run(self, *verb: str, values: Values) -> Any:
        path = self._folder / "values.json"
        path.write_text(json.dumps(values))
        return self._helm(*verb, self._chart, "--values", str(path))

    def render(self, values: Values, *more: str) -> list[Document]:
        """Documents of a release; ``more`` are further arguments of ``helm template``."""
        release = ("template", "mens", "--namespace", "ml", "--kube-version", f"{KUBERNETES}.0", *more)
        asked = json.dumps([self._chart, release, values], sort_keys=True)
        if asked not in RENDERED:
            done = self.run(*release, values=values)
            assert done.returncode == 0, done.stderr
            documents = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
            RENDERED[asked] = json.dumps([document for document in documents if document])
        rendered: list[Document] = json.loads(RENDERED[asked])
        return rendered


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        name = document["metadata"]["labels"]["app.kubernetes.io/component"]
        if document["kind"] in {"Deployment", "Job"}:
            yield name, document["spec"]["template"]["spec"]
        elif document["kind"] == "Pod":
            yield name, document["spec"]


def of(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def environment(pod: Document) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod["containers"][0].get("env", [])}
