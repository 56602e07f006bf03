"""The chart's custom resources match the schemas that their operators install, and have no unknown fields."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import CUSTOM, OPERATORS, Chart, Document, values_file
from tests.system.fetched import custom_resource_schemas


@pytest.fixture(scope="module")
def program() -> Path:
    return custom_resource_schemas()


def faults(program: Path, documents: list[Document]) -> list[list[str]]:
    """Return the faults of each document."""
    node = shutil.which("node")
    assert node, "node runs the operators' schemas (Debian: apt-get install nodejs)"
    done = subprocess.run(
        [node, program], input=json.dumps(documents), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_production_has_every_kind_and_each_fits_its_schema(program: Path, helm: Any, tmp_path: Path) -> None:
    rendered = Chart(helm, tmp_path).render(values_file("production"), *OPERATORS)
    documents = [document for document in rendered if document["kind"] in CUSTOM]
    assert {document["kind"] for document in documents} == CUSTOM
    assert faults(program, documents) == [[] for _ in documents]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"spec": {"scaleTargetRef": {"name": "w"}, "triggers": [], "minReplicas": 1}},
            "/spec/minReplicas is no field",
        ),
        ({"spec": {"scaleTargetRef": {"name": "w"}, "triggers": [], "minReplicaCount": "1"}}, "must be integer"),
        ({"spec": {"triggers": []}}, "must have required property scaleTargetRef"),
        ({"kind": "ScaledThing"}, "keda.sh/v1alpha1 ScaledThing is no kind"),
    ],
)
def test_what_does_not_fit_is_found(program: Path, change: Document, fault: str) -> None:
    document = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "w"}, **change}
    (found,) = faults(program, [document])
    assert len(found) == 1
    assert fault in found[0]
