"""Items of the tenant's evals, read through the API: a mix that names them contains none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.client.connection import call
from cli.evaluation.eval_items import tenant_evals
from shared.base_models.catalog import Catalog, save_catalog
from tests.support.builders import base_entry, new_adapter
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network
QUESTION = "Which of the two northern stations has been closed since the storm of last winter?"
POLICY = """\
version: "1"
runs:
  stations: {eval: eval-1, file: FILE}
gates:
  throughput: {}
  evals:
    quality: {run: stations, max_loss: 0.05}
"""


def write_rows(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(installation: CliInstallation, tmp_path: Path) -> dict[str, str]:
    """A run of an eval of two items."""
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(new_adapter("demo@1"))
    items = write_rows(
        tmp_path / "stations.jsonl",
        {"prompt": QUESTION, "response": "North-East"},
        {"prompt": "Short?", "response": "Yes"},
    )
    begun = ("run", str(items), "--model", "demo@1", "--check", "exact", "--yes", "--no-watch")
    said: dict[str, str] = json.loads(installation.invoke("eval", *begun, "--json").stdout)
    return said


def test_items_of_runs_are_found_once(installation: CliInstallation, run: dict[str, str]) -> None:
    (found,) = tenant_evals()
    assert len(found.items) == 2
    assert QUESTION in json.dumps(found.items[0])


def test_mix_leaves_them_out_on_request(installation: CliInstallation, run: dict[str, str], tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Tell me. {QUESTION}", "response": "No."},
        {"prompt": "short?", "response": "Maybe"},
        {"prompt": "A", "response": "B"},
    ]
    write_rows(tmp_path / "rows.jsonl", *rows)
    mix = tmp_path / "mix.yaml"
    mix.write_text("output: train.jsonl\nsources: [{path: rows.jsonl}]\ndecontaminate: {policies: true}\n")
    report = json.loads(installation.invoke("corpus", "mix", str(mix), "--json").stdout)
    assert (report["total_emitted"], report["dropped"]) == (1, {"CONTAMINATED": 2})
    assert {one["overlap"]["eval"] for one in report["contaminated"]} == {"stations"}


def test_file_that_only_a_policy_names_counts_and_a_deleted_one_does_not(
    installation: CliInstallation, tmp_path: Path
) -> None:
    items = write_rows(tmp_path / "items.jsonl", {"prompt": QUESTION, "response": "North-East"})
    upload = {"file": ("items.jsonl", items.read_bytes())}
    file = call("POST", "/v1/files", data={"purpose": "evals"}, files=upload)["id"]
    for name, named in (("stations", file), ("gone", "file-gone")):
        (tmp_path / "policy.yaml").write_text(POLICY.replace("FILE", named))
        installation.mens("policies", "put", name, str(tmp_path / "policy.yaml"))
    (found,) = tenant_evals()
    assert (found.name, len(found.items)) == ("stations: stations", 1)
