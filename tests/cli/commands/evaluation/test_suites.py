"""``mens eval suites`` with a small program that writes the same files as the harness; the real harness runs in
`tests/system`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.evaluation.suites.environment import environment_folder
from shared.base_models.catalog import Catalog, save_catalog
from tests.support.builders import base_entry, new_adapter
from tests.support.cli_installation import CliInstallation

pytestmark = pytest.mark.network

HARNESS = """#!{python}
import json, os, pathlib, sys
line = dict(zip(sys.argv, sys.argv[1:]))
model = dict(pair.split("=", 1) for pair in line["--model_args"].split(","))["model"]
assert os.environ["OPENAI_API_KEY"] not in " ".join(sys.argv)
if line["--tasks"] == "none":
    sys.exit("Tasks not found: none")
folder = pathlib.Path(line["--output_path"], "x")
folder.mkdir(parents=True)
scores = [float(model == "demo@2" or number % 2) for number in range(200)]
samples = [
    {{"doc_id": number, "doc": {{"q": number}}, "target": "0", "filter": "none", "filtered_resps": [], "metrics": ["acc", "words"],
     "doc_hash": "d", "prompt_hash": "p", "target_hash": "t", "acc": score, "words": [1, 2]}}
    for number, score in enumerate(scores)
]
(folder / "samples_sums_T.jsonl").write_text("".join(json.dumps(sample) + "\\n" for sample in samples))
report = {{"results": {{"sums": {{"acc,none": sum(scores) / 200}}}}, "higher_is_better": {{"sums": {{"acc": True, "words": True}}}}}}
(folder / "results_T.json").write_text(json.dumps(report))
"""


@pytest.fixture
def suites(installation: CliInstallation, tmp_path: Path) -> CliInstallation:
    """Adapters demo@1, which answers every second item, and demo@2, which answers all; the harness in its place."""
    import sys

    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    installation.register(new_adapter("demo@1"), new_adapter("demo@2"))
    python = environment_folder(tmp_path) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(HARNESS.format(python=sys.executable))
    python.chmod(0o755)
    (tmp_path / "tokenizer").mkdir()
    return installation


def run(tmp_path: Path, *arguments: str, task: str = "sums") -> list[str]:
    return ["eval", "suites", "run", task, "--tokenizer", str(tmp_path / "tokenizer"), *arguments]


def test_better_model_is_shown_to_be_not_worse(suites: CliInstallation, tmp_path: Path) -> None:
    printed = suites.mens(*run(tmp_path, "--model", "demo@2", "--against", "demo@1"))
    row = printed.splitlines()[3].split("\t")
    assert row[:6] == ["sums", "acc", "200", "0.500", "1.000", "+0.500"]
    assert row[-1] == "not worse"
    assert "words is not compared: it has no number for each item" in printed


def test_worse_model_ends_with_an_exit_code(suites: CliInstallation, tmp_path: Path) -> None:
    output = tmp_path / "kept"
    arguments = run(tmp_path, "--model", "demo@1", "--against", "demo@2", "--output", str(output), "--json")
    printed: dict[str, Any] = json.loads(suites.invoke(*arguments, code=1).stdout)
    (found,) = printed["comparisons"]
    assert (found["status"], found["difference"], found["items"]) == ("failed", -0.5, 200)
    assert [left["metric"] for left in printed["left_out"]] == ["words"]
    pairs = [json.loads(line) for line in (output / "pairs.jsonl").read_text().splitlines()]
    assert [pair["item"]["q"] for pair in pairs] == list(range(200))
    assert "not empty" in suites.mens(*arguments, code=1)


def test_one_model_has_its_figures(suites: CliInstallation, tmp_path: Path) -> None:
    printed = suites.mens(*run(tmp_path, "--model", "demo@1"))
    assert "sums\tacc\tnone\t200\t0.5000" in printed
    assert (tmp_path / "suites" / "runs" / "0001" / "model-0" / "harness.log").exists()
    suites.mens(*run(tmp_path, "--model", "demo@1"))
    assert (tmp_path / "suites" / "runs" / "0002").is_dir(), "a run never writes into another's folder"


def test_unknown_task_is_named(suites: CliInstallation, tmp_path: Path) -> None:
    printed = suites.mens(*run(tmp_path, "--model", "demo@1", task="none"), code=1)
    assert "SUITE_FAILED" in printed
    assert "Tasks not found: none" in printed


def test_model_that_answers_by_chance_is_refused(suites: CliInstallation, tmp_path: Path) -> None:
    suites.mens("aliases", "split", "prod", "demo@1=1", "demo@2=1")
    assert "is split" in suites.mens(*run(tmp_path, "--model", "prod"), code=1)
    assert "MODEL_NOT_FOUND" in suites.mens(*run(tmp_path, "--model", "nobody"), code=1)


def test_tenant_that_the_harness_cannot_name_is_refused(
    suites: CliInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENS_TENANT", "acme")
    assert "MENS_TENANT" in suites.mens(*run(tmp_path, "--model", "demo@1"), code=1)


def test_without_its_environment_the_command_says_how_to_get_it(installation: CliInstallation, tmp_path: Path) -> None:
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[base_entry()]))
    (tmp_path / "tokenizer").mkdir()
    assert "mens eval suites install" in installation.mens(*run(tmp_path, "--model", "tiny"), code=1)
