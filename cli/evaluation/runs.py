"""Creates, follows and reads evals and runs of an installation, over its API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from cli.client.connection import call, connect, fail, find, find_pages
from cli.client.id_prefixes import EVAL_RUNS, resolve_job_id
from cli.evaluation.eval_file import EvalFile
from shared.errors import MensError
from shared.hashing import digest_json

DIGEST = "mens_digest"
"""Key of an eval's metadata, by which an eval with the same content is found again."""
SAMPLED_PROMPTS = 8


@dataclass(frozen=True)
class RunRequest:
    """A run as requested on the command line.

    Attributes:
        against: the second model of a comparison.
        samples: number of answers to each item.
        margin: allowed loss of the model.
        noise_floor: whether the second model is run twice.
    """

    file: EvalFile
    model: str
    against: str | None = None
    samples: int = 1
    margin: float = 0.03
    noise_floor: bool = False

    @property
    def answers_to_each(self) -> int:
        """Number of answers of all models together to one sample of an item."""
        return (2 + self.noise_floor) if self.against else 1

    @property
    def requests(self) -> int:
        """Number of requests to models, including judges."""
        answers = len(self.file.items) * self.samples * self.answers_to_each
        judges = sum(grader["type"] in ("score_model", "label_model") for grader in self.file.criteria)
        return answers * (1 + judges)

    def data_source(self, file_id: str) -> dict[str, Any]:
        """Return OpenAI's ``data_source`` of the run."""
        return {
            "type": "completions",
            "source": {"type": "file_id", "id": file_id},
            "model": self.model,
            "input_messages": dict(self.file.input_messages),
            "sampling_params": dict(self.file.sampling),
        }


def prompt_tokens(request: RunRequest) -> float | None:
    """Return the mean tokens of a sample of prompts; None if the key may not count tokens, or a prompt is invalid."""
    from shared.evaluation.prompts import messages_of  # many pydantic models, which most commands do not need
    from shared.evaluation.types import CompletionsSource

    source = CompletionsSource.model_validate(request.data_source("file"))
    items = request.file.items[:: max(1, len(request.file.items) // SAMPLED_PROMPTS)][:SAMPLED_PROMPTS]
    counts = []
    try:
        with connect().client() as client:
            for item in items:
                assert source.input_messages
                body = {"model": request.model, "messages": messages_of(source.input_messages, item)}
                counts.append(int(client.post("/v1/tokenize", json=body).raise_for_status().json()["count"]))
    except (httpx.HTTPError, KeyError, ValueError, MensError):
        return None
    return sum(counts) / len(counts)


def create(request: RunRequest) -> dict[str, Any]:
    """Create the run, and its eval unless one with the same content exists; return the run as the API returns it."""
    file = request.file
    definition = {
        "data_source_config": {"type": "custom", "item_schema": file.item_schema(), "include_sample_schema": True},
        "testing_criteria": list(file.criteria),
    }
    digest = digest_json({"name": file.name, **definition})
    evaluations = find_pages("/v1/evals", order="desc")
    evaluation = next(
        (candidate for candidate in evaluations if (candidate.get("metadata") or {}).get(DIGEST) == digest), None
    )
    if evaluation is None:
        evaluation = call("POST", "/v1/evals", json={"name": file.name, "metadata": {DIGEST: digest}, **definition})
    rows = "".join(json.dumps({"item": item}, ensure_ascii=False) + "\n" for item in file.items)
    upload = {"file": (f"{file.name}.jsonl", rows.encode())}
    file_id = call("POST", "/v1/files", data={"purpose": "evals"}, files=upload)["id"]
    body: dict[str, Any] = {"name": file.name, "data_source": request.data_source(file_id)}
    extension: dict[str, Any] = {"samples": request.samples, "margin": request.margin}
    if request.against:
        extension |= {"incumbent": request.against} | ({"noise_floor": True} if request.noise_floor else {})
    body["mens"] = extension
    run: dict[str, Any] = call("POST", f"/v1/evals/{_part(evaluation['id'])}/runs", json=body)
    return run


def find_run(run_id: str) -> dict[str, Any]:
    """Return a run by its id, or by a part of it; end the command if it does not exist."""
    # The run of an ``evaluate`` job has the job's id, so the job names the eval.
    run_id = EVAL_RUNS.among(
        resolve_job_id(run_id), (run["id"] for evaluation in evals() for run in runs(evaluation["id"]))
    )
    job = find(f"/v1/jobs/{_part(run_id)}")
    eval_id = (job or {}).get("plan", {}).get("eval_id")
    candidates = [eval_id] if eval_id else (evaluation["id"] for evaluation in evals())
    matching = (find(f"/v1/evals/{_part(candidate)}/runs/{_part(run_id)}") for candidate in candidates)
    run: dict[str, Any] | None = next(filter(None, matching), None)
    return run or fail(f"the run {run_id} does not exist; `mens eval list` shows all runs.")


def poll(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's current state."""
    return dict(call("GET", f"/v1/evals/{_part(run['eval_id'])}/runs/{_part(run['id'])}"))


def second_model(run: Mapping[str, Any]) -> str | None:
    """Return the model that the run's model is compared with; None without a comparison."""
    models = run["mens"]["models"]
    return str(models[1]["name"]) if len(models) > 1 else None


def evals() -> Iterator[dict[str, Any]]:
    """Yield every eval, newest first."""
    yield from find_pages("/v1/evals", order="desc")


def runs(eval_id: str) -> Iterator[dict[str, Any]]:
    """Yield every run of an eval, newest first."""
    yield from find_pages(f"/v1/evals/{_part(eval_id)}/runs", order="desc")


def output_items(run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every item of a run, in the order of its source."""
    yield from find_pages(f"/v1/evals/{_part(run['eval_id'])}/runs/{_part(run['id'])}/output_items", order="asc")


def cancel(run: Mapping[str, Any]) -> dict[str, Any]:
    """Cancel a run."""
    return dict(call("POST", f"/v1/evals/{_part(run['eval_id'])}/runs/{_part(run['id'])}/cancel"))


def _part(name: Any) -> str:
    return quote(str(name), safe="")
