"""SmolLM2-135M-Instruct, a real model, in a whole installation, compared with transformers and PEFT alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands.weights import ServedWeights, choose_weights
from cli.standalone.stack import Stack, running_stack
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.settings import Settings
from tests.support.smollm2 import smollm2_folder
from tests.support.waiting import eventually
from tests.system.loop import ROOT, Installation, mens
from tests.system.real_base import REAL, SECONDS, add_base, finish, real_installation
from worker.training.lineage import GIT_SHA_VARIABLE, git_sha

QUESTION = "What is the capital of France?"
TRAINING_ROWS, HELD_OUT_ROWS, SAMPLES = 64, 8, 4
FIELDS = {"service", "problem", "since", "city"}
SHIFT_NATS = 1e-4
TWIN_SHIFT_NATS = 0.1
"""The twin is stored in the base's own type, bfloat16, and NF4 trains with float32 values on a CPU; measured: 0.056."""
pytestmark = pytest.mark.timeout(1800)


def tickets(name: str, count: int) -> bytes:
    """The first rows of one of the demo's files."""
    return b"".join((ROOT / "examples" / name).read_bytes().splitlines(keepends=True)[:count])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    commit = {GIT_SHA_VARIABLE: sha} if (sha := git_sha(os.environ)) else {}
    settings = commit | {"MENS_SAMPLE_ANSWERS": str(SAMPLES)}
    with real_installation(tmp_path_factory.mktemp("real"), from_gguf=True, **settings) as installation:
        yield installation


EXEC = {"epochs": 1, "batch_size": 4, "grad_accum": 1, "learning_rate": 6e-4, "checkpoint_every": 6}


def submit(installation: Installation, rows: int = TRAINING_ROWS, **sections: dict[str, Any]) -> str:
    """Id of a job that learns tickets in a few steps."""
    contract: dict[str, Any] = {
        "model": {"name": REAL},
        "data": {
            "train_file": installation.upload_bytes("tickets.jsonl", tickets("tickets.jsonl", rows)),
            "validation_file": installation.upload_bytes(
                "held-out.jsonl", tickets("tickets.heldout.jsonl", HELD_OUT_ROWS)
            ),
        },
        "quant": {"base": "none"},
        "exec": EXEC,
        "artifact": {"alias": "tickets"},
    }
    for name, fields in sections.items():
        contract[name] = contract[name] | fields
    body = {"kind": "finetune", "name": "tickets", "contract": contract}
    return str(installation.call("POST", "/v1/jobs", json=body)["id"])


@pytest.fixture(scope="module")
def said(real: Installation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of `mens train` for the job of `tuned`: tickets over the base in float32, with an alias."""
    folder = tmp_path_factory.mktemp("rows")
    rows, held_out = folder / "tickets.jsonl", folder / "held-out.jsonl"
    rows.write_bytes(tickets("tickets.jsonl", TRAINING_ROWS))
    held_out.write_bytes(tickets("tickets.heldout.jsonl", HELD_OUT_ROWS))
    values = {"model": REAL, "validation": held_out, "alias": "tickets", "quant": "none"} | EXEC
    options = [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    done = mens("train", str(rows), *options, home=real.stack.home, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tuned(real: Installation, said: str) -> dict[str, Any]:
    """The finished job of the command."""
    return real.job(said.partition("created ")[2].partition(":")[0])


def export(installation: Installation, adapter: str, folder: Path) -> Path:
    """The adapter as a PEFT folder, by the command line."""
    done = mens("adapter", "export", adapter, "--to", str(folder), home=installation.stack.home, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def names_of(installation: Installation) -> list[str]:
    """Names of the models that are offered."""
    return [model["id"] for model in installation.call("GET", "/v1/models")["data"]]


def folder_of(installation: Installation, adapter: str) -> Path:
    """The stored folder of an adapter."""
    return installation.stack.home / "storage" / "adapters" / adapter.partition("@")[2]


def answers_a_ticket(installation: Installation, model: str) -> bool:
    """Return whether a model answers the first held-out message with the fields of a ticket, and ends its turn there."""
    prompt = json.loads(tickets("tickets.heldout.jsonl", 1))["messages"][:-1]
    body = {"model": model, "messages": prompt, "temperature": 0, "max_tokens": 64}
    answer = installation.call("POST", "/v1/chat/completions", json=body)["choices"][0]
    ticket: dict[str, Any] = json.loads(answer["message"]["content"])
    return bool(answer["finish_reason"] == "stop") and ticket.keys() == FIELDS


def independent_loss(base: Path, adapter: Path | None) -> float:
    """Mean loss of the held-out answers' tokens, by a program that has none of our code."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "independent_loss.py"), str(base), str(adapter or "")]
    rows = tickets("tickets.heldout.jsonl", HELD_OUT_ROWS)
    done = subprocess.run(command, input=rows, cwd=base, capture_output=True, timeout=900, check=True)
    return float(json.loads(done.stdout)["loss"])


def test_greedy_answer_of_the_untuned_base_is_transformers_own(real: Installation) -> None:
    program = ROOT / "tests" / "support" / "independent_answer.py"
    command = [sys.executable, str(program), str(smollm2_folder()), QUESTION, "24"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    body = {"model": REAL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
    answer = real.call("POST", "/v1/chat/completions", json=body)
    assert answer["choices"][0]["message"]["content"] == json.loads(done.stdout)["answer"]
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_reported_loss_is_that_of_transformers_and_peft(
    real: Installation, tuned: dict[str, Any], tmp_path: Path
) -> None:
    evaluation = tuned["result"]["self_evaluation"]
    assert evaluation["rows"] == HELD_OUT_ROWS
    assert len(evaluation["general_answers"]) == 8 and any(
        one["kept"] is not None for one in evaluation["general_answers"]
    )
    adapter = export(real, tuned["result"]["adapter_id"], tmp_path / "peft")
    base, own = independent_loss(smollm2_folder(), None), independent_loss(smollm2_folder(), adapter)
    for measured in (evaluation, evaluation["served"]):
        assert measured["loss"]["base"] == pytest.approx(base, rel=0.02)
        assert measured["loss"]["tuned"] == pytest.approx(own, rel=0.02)
    assert own < base / 3


def test_served_base_is_the_one_that_was_trained(real: Installation, tuned: dict[str, Any]) -> None:
    """Trained and served in float32: what is left between trainer and replica is how both add up."""
    adapter = real.call("GET", f"/v1/adapters/{tuned['result']['adapter_id']}")
    (certificate,) = adapter["certificates"].values()
    parity = certificate["parity"]
    assert certificate["passed"] and parity["base_shift_max_nats"] < SHIFT_NATS
    assert parity["engine_error_max_nats"] < SHIFT_NATS


def test_tuned_model_answers_in_the_trained_form(real: Installation, tuned: dict[str, Any]) -> None:
    assert answers_a_ticket(real, "tickets")


def test_chat_prints_the_answer_of_the_tuned_model(real: Installation, tuned: dict[str, Any]) -> None:
    system, user, _ = json.loads(tickets("tickets.heldout.jsonl", 1))["messages"]
    chat = ["chat", "tickets", user["content"], "--system", system["content"], "--max-tokens", "64"]
    done = mens(*chat, home=real.stack.home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout).keys() == FIELDS


def test_evaluation_compares_the_tuned_model_with_its_base(real: Installation, tuned: dict[str, Any]) -> None:
    rows = real.stack.home / "held-out.jsonl"
    rows.write_bytes(tickets("tickets.heldout.jsonl", HELD_OUT_ROWS))
    check = real.stack.home / "ticket.schema.json"
    check.write_text(json.dumps({"type": "object", "required": list(FIELDS)}))
    run = [
        "eval",
        "run",
        str(rows),
        "--model",
        "tickets",
        "--against",
        REAL,
        "--check",
        f"json_schema={check}",
        "--max-tokens",
        "64",
        "--yes",
    ]
    done = mens(*run, home=real.stack.home, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = rf"json_schema\t{HELD_OUT_ROWS}\t0\.000\t(0\.[5-9]\d+|1\.000)\t.*\tnot worse"
    assert re.search(compared, done.stdout), done.stdout


@pytest.mark.long  # the same on the tiny base: tests/system/test_chaos.py
def test_killed_trainer_resumes_to_the_same_adapter(real: Installation, tuned: dict[str, Any]) -> None:
    job_id = submit(real, artifact={"alias": None, "publish": False})
    real.wait_for_step(job_id, 8)
    trainers = real.trainers()
    for trainer in trainers:
        trainer.kill()
    assert trainers
    job = finish(real, job_id)
    assert job["attempt"] == 2
    assert real.resumptions(job_id) == 1
    # The alias is part of the contract, whose digest the manifest has; so the ids differ.
    resumed, uninterrupted = (folder_of(real, each["result"]["adapter_id"]) / WEIGHTS_NAME for each in (job, tuned))
    assert resumed.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.long  # a twin's certificate on the tiny base: tests/vllm/test_certificates.py
def test_reported_loss_of_an_nf4_job_on_the_served_twin_is_that_of_peft(tmp_path: Path) -> None:
    """The twin is made and served as `mens up --weights twin` does."""
    add_base(tmp_path)
    (twin,) = choose_weights(Settings(home=tmp_path), [REAL], ServedWeights.TWIN, print)
    with running_stack(Stack(tmp_path, twin, environment={"MENS_PUBLISH_TIMEOUT_SECONDS": "600"})) as stack:
        other = Installation(stack)
        job = finish(other, submit(other, rows=24, quant={"base": "nf4"}))
        adapter = other.call("GET", f"/v1/adapters/{job['result']['adapter_id']}")
        stored = folder_of(other, adapter["id"])
    (certificate,) = adapter["certificates"].values()
    assert certificate["passed"] and certificate["parity"]["base_shift_max_nats"] < TWIN_SHIFT_NATS
    measured, own = job["result"]["self_evaluation"], independent_loss(tmp_path / "bases" / twin, stored)
    assert measured["loss"]["tuned"] == pytest.approx(own, rel=0.02)
    assert measured["served"]["loss"]["tuned"] == pytest.approx(own, rel=0.02)


def test_exported_adapter_is_imported_back_and_certified(
    real: Installation, tuned: dict[str, Any], tmp_path: Path
) -> None:
    folder = export(real, tuned["result"]["adapter_id"], tmp_path / "peft")
    done = mens("adapter", "import", str(folder), "--model", REAL, "--name", "back", home=real.stack.home, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr

    eventually(lambda: any(name.startswith("back@") for name in names_of(real)), 60, "the imported adapter is offered")


@pytest.mark.long  # merging and serving of tiny models: tests/system/test_merges.py, tests/vllm/test_merged_model.py
def test_merged_model_is_served_and_exported_for_ollama(
    real: Installation, tuned: dict[str, Any], tmp_path: Path
) -> None:
    adapter = tuned["result"]["adapter_id"]
    body = {"kind": "merge", "contract": {"adapter": adapter}}
    digest = finish(real, str(real.call("POST", "/v1/jobs", json=body)["id"]))["result"]["model_digest"]
    folder = real.stack.home / "storage" / "models" / digest
    peft = export(real, adapter, tmp_path / "peft")
    # The merged weights are rounded to the base's own type, bfloat16.
    assert independent_loss(folder, None) == pytest.approx(independent_loss(smollm2_folder(), peft), rel=0.05)

    ollama = tmp_path / "ollama"
    layout = ["--format", "ollama", "--model-folder", str(folder), "--to", str(ollama)]
    done = mens("adapter", "export", adapter, *layout, home=real.stack.home, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    modelfile = (ollama / "Modelfile").read_text()
    assert "FROM " in modelfile and 'PARAMETER stop "<|im_end|>"' in modelfile

    merged = mens("base", "from-merge", digest, "--as", "merged", home=real.stack.home, timeout=900)
    assert merged.returncode == 0, merged.stdout + merged.stderr
    # An installation of its own on the same storage, whose catalogue has the model and nothing else.
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "storage").symlink_to(real.stack.home / "storage")
    catalog = load_catalog(Settings(home=real.stack.home).catalog_path)
    entry = next(entry for entry in catalog.bases if entry.name == "merged")
    save_catalog(Settings(home=tmp_path / "home").catalog_path, Catalog(bases=[entry]))
    with running_stack(Stack(tmp_path / "home", "merged")) as stack:
        other = Installation(stack)
        eventually(lambda: "merged" in names_of(other), 300, "the merged model is measured and offered")
        assert answers_a_ticket(other, "merged")
