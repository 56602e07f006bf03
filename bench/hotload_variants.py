"""What ``python -m bench.hotload`` measures: a whole installation, a plain vLLM beside it, adapters, and finished jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench.loopback import wait
from cli.stack import Stack, _free_port, kill_group, running_stack
from serving.engine_args import engine_argv, engine_env
from serving.launch import prepare
from serving.settings import ServingSettings
from shared.catalog import BaseModelEntry, load_catalog
from shared.db import Database
from shared.digest import digest_file
from shared.hub import locate
from shared.job import Kind, Submission
from shared.lease import Lease, LeaseLedger
from shared.ledger import Ledger
from shared.manifest import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest, ManifestQuant, peft_keys
from shared.model_config import parse_model_config
from shared.model_tensors import lora_modules
from shared.registry import NewAdapter
from shared.settings import Settings
from shared.storage import Storage

BASE = "mens-tiny"
START_SECONDS = 180.0


@dataclass(frozen=True)
class Stored:
    """An adapter as its training leaves it: in the storage, known to no ledger and to no replica."""

    adapter_id: str
    folder: Path
    bytes: int


class Trainer:
    """Makes adapters without training: random ones, which a replica loads like any other.

    Args:
        settings: of the installation.
        rank: theirs.
    """

    def __init__(self, settings: Settings, rank: int) -> None:
        self._base: BaseModelEntry = load_catalog(settings.catalog_path).get(BASE)
        folder = locate(self._base, settings.catalog_path)
        self._modules = lora_modules(parse_model_config(json.loads((folder / "config.json").read_text())))
        self._storage, self._work, self._rank = Storage(settings.storage_dir), settings.home / "bench", rank
        self._random = np.random.default_rng(0)

    def make(self, name: str) -> Stored:
        """A new one."""
        folder = self._work / name
        folder.mkdir(parents=True)
        save_file(self._weights(), folder / WEIGHTS_NAME)
        targets = sorted({module.rsplit(".", 1)[-1] for module in self._modules})
        facts = {"peft_type": "LORA", "r": self._rank, "lora_alpha": 2 * self._rank, "bias": "none"}
        (folder / CONFIG_NAME).write_text(json.dumps(facts | {"target_modules": targets, "task_type": "CAUSAL_LM"}))
        manifest = self._manifest(name, folder)
        (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        names = [WEIGHTS_NAME, CONFIG_NAME]
        stored = self._storage.put_folder("adapters", manifest.digest, folder, names, MANIFEST_NAME)
        return Stored(manifest.adapter_id, stored, (folder / WEIGHTS_NAME).stat().st_size)

    def _weights(self) -> dict[str, Any]:
        weights = {}
        for module, (width_in, width_out) in self._modules.items():
            shapes = ((self._rank, width_in), (width_out, self._rank))
            for key, shape in zip(peft_keys(f"{module}.weight"), shapes, strict=True):
                weights[key] = self._random.normal(0.0, 0.02, shape).astype(np.float32)
        return weights

    def _manifest(self, name: str, folder: Path) -> AdapterManifest:
        return AdapterManifest(
            adapter_method="qlora",
            quant=ManifestQuant(base_quant="nf4"),
            base_key_map={module: f"{module}.weight" for module in self._modules},
            layer_order=list(self._modules),
            vocab=1,
            d_model=1,
            rank=self._rank,
            alpha=2 * self._rank,
            base_model=BASE,
            name=name,
            base_digests=self._base.digests,
            contract_digest="0" * 64,
            template_digest="0" * 64,
            step=1,
            files={file: digest_file(folder / file) for file in (WEIGHTS_NAME, CONFIG_NAME)},
        )


class Worker:
    """Finishes jobs as the worker does, in a process that is not the front door's."""

    def __init__(self, settings: Settings) -> None:
        self._database = Database(settings.database_url)
        self._leases = LeaseLedger(self._database, 600)

    def begin(self, name: str) -> Lease:
        """A job that is running."""
        asked = Submission(kind=Kind.FINETUNE, base_model=BASE, name=name, contract={}, plan={})
        lease = self._leases.claim(Ledger(self._database).submit(asked)[0].id, "bench")
        assert lease
        return lease

    def finish(self, lease: Lease, stored: Stored, alias: str) -> tuple[float, float]:
        """The transaction that makes the job succeed, publishes its adapter and moves the alias.

        Returns:
            When it was done, on the clock of ``time.perf_counter``, and the seconds that it took.
        """
        began = time.perf_counter()
        adapter = NewAdapter(
            id=stored.adapter_id,
            digest=stored.adapter_id.partition("@")[2],
            base_model=BASE,
            step=1,
            final=True,
            published=True,
            manifest={},
        )
        self._leases.finish(lease, {}, adapters=[adapter], alias=alias)
        done = time.perf_counter()
        return done, done - began

    def close(self) -> None:
        """Leave the database."""
        self._database.close()


@contextmanager
def installation(home: Path, room: dict[str, int]) -> Iterator[Stack]:
    """The whole installation around the tiny base; ``room`` is how many adapters have room, as serving settings."""
    from cli.bases import build

    build(Settings(home=home), BASE)
    environment = {f"MENS_{name.upper()}": str(value) for name, value in room.items()}
    with running_stack(Stack(home, BASE, environment=environment)) as stack:
        yield stack


@contextmanager
def plain_vllm(stack: Stack, room: dict[str, int]) -> Iterator[str]:
    """URL of a vLLM with the replica's engine options and nothing of Mens: no wall, no resolver, its own load route."""
    own: dict[str, Any] = {"serving_key": stack.settings["MENS_SERVING_KEY"], "serving_port": _free_port(), **room}
    settings = ServingSettings(home=stack.home, serving_base=BASE, **own)
    launch = prepare(settings)
    argv = engine_argv(launch)
    at = argv.index("--middleware")
    environment = {**os.environ, **engine_env(launch), "VLLM_PLUGINS": ""}
    with (stack.home / "logs" / "plain-vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *argv[:at], *argv[at + 2 :]],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{settings.serving_port}"
    try:
        wait(f"{url}/health", START_SECONDS, process)
        yield url
    finally:
        kill_group(process.pid)
        process.wait()
