"""Imports and merges in a whole installation: certified on the real vLLM and served; killed at random, with the same
result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from shared.artifacts.manifests import MODEL_MANIFEST_NAME
from shared.artifacts.merge_fidelity import PROBES_NAME
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V3_NAME
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder, load_catalog, save_catalog
from shared.base_models.weights import find_shards
from shared.hashing import digest_file
from shared.settings import Settings
from tests.support.original_adapter import make_original
from tests.support.waiting import eventually
from tests.system.loop import BASE, ROOT, Installation

STRIKES = int(os.environ.get("MENS_TEST_KILLS", "3"))
SEED = int(os.environ.get("MENS_TEST_KILLS_SEED", "0"))
ENDED = ("succeeded", "failed", "cancelled")
AGAIN_SECONDS = 240
"""A job that has used up its retries but one waits a minute for the last, once its lease has expired."""
WIDE = "wide"
"""A base in many shards, so that a merge of it takes long enough to be killed in."""

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
}

pytestmark = pytest.mark.timeout(600)


def import_original(installation: Installation, base: Path, model: str, *, publish: bool) -> dict[str, Any]:
    """The job that has imported an adapter of the original's for a base."""
    config = json.loads((base / "config.json").read_bytes())
    made = make_original(base, "F", sizes=(config["vocab_size"], config["hidden_size"]), seed=7)
    folder = made.write(installation.stack.home / f"original-{model}")
    contract: dict[str, Any] = {"model": model, "name": f"old-{model}", "publish": publish}
    for field, name in (("weights_file", ORIGINAL_WEIGHTS), ("sidecar_file", V3_NAME)):
        contract[field] = installation.upload_bytes(name, (folder / name).read_bytes())
    job = installation.call("POST", "/v1/jobs", json={"kind": "import", "contract": contract})
    return installation.wait_for_success(job["id"])


def submit_merge(installation: Installation, adapter: str) -> str:
    """Id of a merge job."""
    job = installation.call("POST", "/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter}})
    return str(job["id"])


def stored_model(installation: Installation, job: dict[str, Any]) -> Path:
    """The stored folder of what a merge job has made; every file in it is as its manifest says."""
    folder = installation.stack.home / "storage" / "models" / job["result"]["model_digest"]
    manifest = json.loads((folder / MODEL_MANIFEST_NAME).read_bytes())
    assert {name: digest_file(folder / name) for name in manifest["files"]} == manifest["files"]
    return folder


@pytest.mark.long  # its steps by themselves: tests/worker/jobs/test_adapter_import.py and test_merge.py, tests/vllm/test_imported_adapters.py
def test_an_imported_adapter_is_certified_served_and_merged(installation: Installation) -> None:
    home = installation.stack.home
    base = home / "bases" / BASE
    done = import_original(installation, base, BASE, publish=True)
    adapter_id = done["result"]["adapter_id"]

    record = installation.call("GET", f"/v1/adapters/{adapter_id}")
    (certificate,) = record["certificates"].values()
    assert record["state"] == "published" and certificate["passed"]
    assert certificate["effect_rms_nats"] > 0.1
    assert certificate["parity"]["engine_error_rms_nats"] < 1e-4
    with installation.connection.client() as client:
        body = {"model": adapter_id, "messages": [{"role": "user", "content": "?"}], "max_tokens": 4}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.headers["x-mens-adapter"] == adapter_id

    merged = installation.wait_for_success(submit_merge(installation, adapter_id))
    folder = stored_model(installation, merged)
    fidelity = merged["result"]["fidelity"]
    assert fidelity["adapter_divergence"]["mean_kl_nats"] < 1e-6 < fidelity["effect"]["mean_kl_nats"]
    assert json.loads((folder / PROBES_NAME).read_bytes())["model_digest"] == folder.name

    # The original's merge of the same two: its tensors are the complete model's.
    output = home / "subset" / "merged.safetensors"
    output.parent.mkdir()
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "merge",
        "--base-shard",
        str(base / "model.safetensors"),
        "--output",
        str(output),
    ]
    command += [
        "--adapter",
        str(home / f"original-{BASE}" / ORIGINAL_WEIGHTS),
        "--meta",
        str(home / f"original-{BASE}" / V3_NAME),
    ]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert "tensors to" in told.stdout
    assert_same_tensors(output, folder)


def assert_same_tensors(subset: Path, folder: Path) -> None:
    from safetensors.numpy import load_file

    whole = {key: value for shard in find_shards(folder) for key, value in load_file(folder / shard).items()}
    part = load_file(subset)
    assert part and all((value == whole[key]).all() for key, value in part.items())


def make_wide(installation: Installation) -> Path:
    """Put the base of many shards into the catalogue; returns its folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = Settings(home=installation.stack.home)
    tiny, folder = settings.home / "bases" / BASE, settings.home / "bases" / WIDE
    config = AutoConfig.from_pretrained(tiny)
    config.update(SIZES | {"num_key_value_heads": 8})
    config.layer_types = ["full_attention"] * 8
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="8MB")
    for path in tiny.iterdir():
        if not (folder / path.name).exists() and path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)
    entry = BaseModelEntry(name=WIDE, source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    assert len(find_shards(folder)) > 8
    return folder


def merging_child(installation: Installation) -> tuple[psutil.Process, psutil.Process] | None:
    """The worker and its merging child, once both are there."""
    if not (pid := installation.stack.pid("worker")):
        return None
    with suppress(psutil.NoSuchProcess):
        worker = psutil.Process(pid)
        for child in worker.children():
            if "worker.merge" in child.cmdline():
                return worker, child
    return None


def strike(installation: Installation, random: Random, job_id: str, seconds: float) -> str:
    """Kill the worker or its merging child, some time after that has started; returns which, or what the job has come to."""
    deadline = time.monotonic() + AGAIN_SECONDS
    while time.monotonic() < deadline:
        if found := merging_child(installation):
            time.sleep(random.uniform(0, seconds))
            victim = random.randrange(2)
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if found[1].status() != psutil.STATUS_ZOMBIE:
                    found[victim].kill()
                    found[1].wait(60)  # which ends with its worker
                    return ("worker", "child")[victim]
        if (state := installation.job(job_id)["state"]) in ENDED:
            return str(state)
        time.sleep(0.05)
    raise AssertionError(f"{job_id} was not merged again within {AGAIN_SECONDS} s")


@pytest.mark.long  # a kill at a known place is in tests/worker/merging/test_model_folder.py
def test_a_merge_that_was_killed_has_the_digest_of_an_undisturbed_one(installation: Installation) -> None:
    folder = make_wide(installation)
    adapter = import_original(installation, folder, WIDE, publish=False)["result"]["adapter_id"]
    job_id = submit_merge(installation, adapter)
    eventually(lambda: merging_child(installation), 60)
    began, found = time.monotonic(), merging_child(installation)
    if found:
        found[1].wait(120)
    seconds = time.monotonic() - began
    undisturbed = installation.wait_for_success(job_id)
    model = stored_model(installation, undisturbed)

    random, struck, done = Random(SEED), [], []
    while len(struck) < STRIKES:
        if not done or done[-1]["state"] in ENDED:
            shutil.rmtree(model)  # what is there in the end was stored by a merge that was struck
            done.append(installation.job(submit_merge(installation, adapter)))
        outcome = strike(installation, random, done[-1]["id"], seconds)
        struck += [outcome] if outcome in ("worker", "child") else []
        done[-1] = installation.job(done[-1]["id"])
    done = [installation.wait_for_success(job["id"]) for job in done]
    print(json.dumps({"seconds": seconds, "struck": struck, "attempts": [job["attempt"] for job in done]}))
    assert {job["result"]["model_digest"] for job in done} == {undisturbed["result"]["model_digest"]}
    assert max(job["attempt"] for job in done) > 1
    assert stored_model(installation, done[-1]) == model
