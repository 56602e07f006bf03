"""The chart as tests use it: rendered by helm, its smallest values, and what is found in its documents."""

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
    "serving": {"base": "qwen3-0.6b"},
}
SEVERAL: Values = {**MINIMAL, "serving": {"base": "qwen3-0.6b", "replicas": 3, "urls": ["http://a:8001"]}}
NO_SERVING: Values = {**MINIMAL, "serving": {"replicas": 0, "urls": ["http://a:8001", "http://b:8001"]}}


class Chart:
    """Runs helm over the chart with values given as a dict."""

    def __init__(self, helm: Any, folder: Path) -> None:
        self._helm, self._folder = helm, folder

    def run(self, *verb: str, values: Values) -> Any:
        path = self._folder / "values.json"
        path.write_text(json.dumps(values))
        return self._helm(*verb, "deploy/helm", "--values", str(path))

    def render(self, values: Values, *more: str) -> list[Document]:
        """Documents of a release, ``more`` being further arguments of ``helm template``."""
        done = self.run(
            "template", "mens", "--namespace", "ml", "--kube-version", f"{KUBERNETES}.0", *more, values=values
        )
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


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
