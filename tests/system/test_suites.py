"""Benchmark suites: the published lm-evaluation-harness against a real installation, with a custom multiple-choice
task.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.harness.fetched_folders import TOOLS
from cli.evaluation.suites.environment import environment_folder, install
from cli.main import app
from shared.base_models.catalog import load_catalog
from shared.base_models.hub import locate
from shared.settings import Settings
from tests.system.loop import BASE, Installation

pytestmark = [pytest.mark.network, pytest.mark.torch, pytest.mark.timeout(420)]

TASK = """
task: counting
dataset_path: json
dataset_kwargs:
  data_files: {test: rows.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: " "
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
ROWS = [
    {"question": "Count from 1 to 5. One, two,", "choices": ["three, four, five", "red, green, blue"], "answer": 0},
    {"question": "The weather in Paris is", "choices": ["sunny today", "a tool call", "Mens"], "answer": 0},
    {"question": "Where is the truth about a job kept? In the", "choices": ["sea", "database row"], "answer": 1},
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one task of three rows."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "counting.yaml").write_text(TASK)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture
def mens(installation: Installation, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``mens eval suites`` against the installation; the harness is fetched once into .tools/."""
    wanted = environment_folder(home)
    fetched = TOOLS / f"suites-{wanted.name}"
    install(fetched)
    wanted.parent.mkdir(exist_ok=True)
    if not wanted.exists():
        wanted.symlink_to(fetched)
    monkeypatch.setenv("MENS_HOME", str(home))
    monkeypatch.setenv("MENS_API_URL", installation.connection.url)
    monkeypatch.setenv("MENS_API_KEY", installation.connection.key)

    def run(*arguments: str, code: int) -> Any:
        result = CliRunner().invoke(app, ["eval", "suites", "run", *arguments, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


def trainers_scores(home: Path, adapter_id: str, requests: list[tuple[str, str]]) -> dict[str, list[float]]:
    """Log-likelihood of each continuation after its context, as the trainer computes it: with the adapter, and without."""
    import torch
    from tokenizers import Tokenizer

    from worker.score import load
    from worker.training.probes import score_probes

    settings = Settings(home=home)
    base = locate(load_catalog(settings.catalog_path).get(BASE), settings.catalog_path)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    probes = []
    for context, continuation in requests:
        ids = tokenizer.encode(context + continuation, add_special_tokens=False).ids
        begin = len(tokenizer.encode(context, add_special_tokens=False).ids)
        probes.append({"token_ids": ids, "positions": list(range(begin, len(ids)))})
    adapter = home / "storage" / "adapters" / adapter_id.partition("@")[2]
    device = torch.device("cpu")
    model = load(base, adapter, torch.float32, device)
    tuned = [sum(scores) for scores in score_probes(model, probes, device)]
    with model.disable_adapter():
        plain = [sum(scores) for scores in score_probes(model, probes, device)]
    return {"tuned": tuned, "base": plain}


def logged(folder: Path) -> list[dict[str, Any]]:
    (samples,) = folder.rglob("samples_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def likelihoods(folder: Path) -> tuple[list[tuple[str, str]], list[float]]:
    """Context and continuation of every request of a run, and what the harness has found."""
    requests, found = [], []
    for line in logged(folder):
        requests += [(each["arg_0"], each["arg_1"]) for each in line["arguments"].values()]
        found += [float(response[0][0]) for response in line["resps"]]
    return requests, found


def test_multiple_choice_is_scored_as_the_trainer_scores_it(
    mens: Any, installation: Installation, home: Path, assistant: str, task: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    given = ("--model", assistant, "--tasks-folder", str(task), "--output", str(output))
    mens("counting", *given, code=0)
    requests, found = likelihoods(output)
    assert len(requests) == 7
    adapter = installation.call("GET", f"/v1/aliases/{assistant}")["targets"][0]["adapter"]
    expected = trainers_scores(home, adapter, requests)
    assert found == pytest.approx(expected["tuned"], abs=5e-2)
    assert found != pytest.approx(expected["base"], abs=1.0), "an adapter that changes nothing would prove nothing"


@pytest.mark.long  # of one model above
def test_multiple_choice_of_two_models(
    mens: Any, installation: Installation, home: Path, assistant: str, task: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    printed = mens(
        "counting",
        "--model",
        assistant,
        "--against",
        BASE,
        "--tasks-folder",
        str(task),
        "--output",
        str(output),
        code=1,
    )
    (found,) = printed["comparisons"]
    assert (found["task"], found["metric"], found["items"]) == ("counting", "acc", 3)
    assert found["status"] == "missing_evidence", "three items decide nothing"
    assert found["items_needed"] > 3

    requests, base = likelihoods(output / "model-0")
    assert len(requests) == 7
    same, tuned = likelihoods(output / "model-1")
    assert same == requests
    adapter = installation.call("GET", f"/v1/aliases/{assistant}")["targets"][0]["adapter"]
    expected = trainers_scores(home, adapter, requests)
    assert base == pytest.approx(expected["base"], abs=5e-2)
    assert tuned == pytest.approx(expected["tuned"], abs=5e-2)
    assert tuned != pytest.approx(base, abs=1.0), "an adapter that changes nothing would prove nothing"

    # Each item's score follows from the likelihoods, and the pairs are of the same item.
    pairs = [json.loads(line) for line in (output / "pairs.jsonl").read_text().splitlines()]
    assert [pair["item"] for pair in pairs] == ROWS
    for name, scores in (("old", base), ("new", tuned)):
        offset = 0
        for row, pair in zip(ROWS, pairs, strict=True):
            own = scores[offset : offset + len(row["choices"])]
            offset += len(own)
            assert pair[name] == float(own.index(max(own)) == row["answer"])
    secret = installation.connection.key.encode()
    assert not [path for path in output.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.long
def test_a_task_that_is_missing_is_named(mens: Any, task: Path, tmp_path: Path) -> None:
    error = mens("summing", "--model", BASE, "--tasks-folder", str(task), "--output", str(tmp_path / "out"), code=1)
    assert error["error"]["code"] == "SUITE_FAILED"
    assert "summing" in error["error"]["message"]


@pytest.mark.parametrize("tokens", [0, 1])
def test_prompts_of_token_ids_are_echoed_with_their_scores(
    installation: Installation, assistant: str, tokens: int
) -> None:
    """Requests as the harness sends them, with several prompts in one request, for a base and for an adapter."""
    texts = ["Count from 1 to 5.", "Where is the truth about a job kept?"]
    ids = [installation.call("POST", "/v1/tokenize", json={"model": BASE, "prompt": text})["tokens"] for text in texts]
    wanted = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": tokens, "temperature": 0, "seed": 1234}
    for model in (BASE, assistant):
        choices = installation.call("POST", "/v1/completions", json={"model": model, **wanted})["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        for choice, prompt, text in zip(choices, ids, texts, strict=True):
            first, *scores = choice["logprobs"]["token_logprobs"]
            assert first is None, "nothing comes before the first token, so it has no probability"
            assert all(score <= 0 for score in scores)
            assert 1 + len(scores) == len(choice["logprobs"]["top_logprobs"]) == len(prompt) + tokens
            assert choice["text"].startswith(text)
