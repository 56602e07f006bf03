"""Variants of ``python -m bench.hotload``: a whole installation, a plain vLLM, adapters, and finished jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench.harness.bases import add_base
from bench.harness.loopback import free_port, server
from bench.harness.smollm2 import SMOLLM2
from cli.standalone.stack import Stack, running_stack
from serving.launch.engine_args import ENTRY_POINT, engine_argv, engine_env
from serving.launch.prepare import prepare
from serving.settings import ServingSettings
from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    ManifestQuant,
    peft_keys,
)
from shared.artifacts.open_storage import open_storage
from shared.base_models.catalog import BaseModelEntry, load_catalog
from shared.base_models.config import parse_model_config
from shared.base_models.hub import locate
from shared.base_models.tensors import lora_modules
from shared.database.adapters import NewAdapter
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Kind, Submission
from shared.hashing import digest_file
from shared.settings import Settings

START_SECONDS = 180.0
CACHE_BYTES = 1 << 30
"""KV cache of a server of the real base: more than sixteen streams need, and the same size for the replica and the
plain vLLM.
"""


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter in the state in which training leaves it: in the storage, but unknown to the database and to replicas."""

    adapter_id: str
    folder: Path
    bytes: int


class AdapterFactory:
    """Makes adapters without training: random ones, which a replica loads like any other.

    Args:
        settings: settings of the installation.
        base: name of the adapters' base.
        rank: rank of the adapters.
    """

    def __init__(self, settings: Settings, base: str, rank: int) -> None:
        self._base: BaseModelEntry = load_catalog(settings.catalog_path).get(base)
        folder = locate(self._base, settings.catalog_path)
        self._modules = lora_modules(parse_model_config(json.loads((folder / "config.json").read_text())))
        self._storage, self._work, self._rank = open_storage(settings), settings.home / "bench", rank
        self._random = np.random.default_rng(0)

    def make(self, name: str) -> TrainedAdapter:
        """Make a new adapter."""
        folder = self._work / name
        folder.mkdir(parents=True)
        weights = {}
        for module, (width_in, width_out) in self._modules.items():
            shapes = ((self._rank, width_in), (width_out, self._rank))
            for key, shape in zip(peft_keys(f"{module}.weight"), shapes, strict=True):
                weights[key] = self._random.normal(0.0, 0.02, shape).astype(np.float32)
        save_file(weights, folder / WEIGHTS_NAME)
        targets = sorted({module.rsplit(".", 1)[-1] for module in self._modules})
        facts = {"peft_type": "LORA", "r": self._rank, "lora_alpha": 2 * self._rank, "bias": "none"}
        (folder / CONFIG_NAME).write_text(json.dumps(facts | {"target_modules": targets, "task_type": "CAUSAL_LM"}))
        manifest = self._manifest(name, folder)
        (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        names = [WEIGHTS_NAME, CONFIG_NAME]
        self._storage.put_folder("adapters", manifest.digest, folder, names, MANIFEST_NAME)
        return TrainedAdapter(manifest.adapter_id, folder, (folder / WEIGHTS_NAME).stat().st_size)

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
            base_model=self._base.name,
            name=name,
            base_digests=self._base.digests,
            contract_digest="0" * 64,
            template_digest="0" * 64,
            step=1,
            files={file: digest_file(folder / file) for file in (WEIGHTS_NAME, CONFIG_NAME)},
        )


class FinishingWorker:
    """Finishes jobs as the worker does, in a process that is not the API's.

    Args:
        settings: settings of the installation.
        base: name of the jobs' base.
    """

    def __init__(self, settings: Settings, base: str) -> None:
        self._base = base
        self._database = Database(settings.database_url)
        self._leases = Leases(self._database, 600)

    def begin(self, name: str) -> Lease:
        """Start a job: an import, because its adapter was not trained."""
        submission = Submission(kind=Kind.IMPORT, base_model=self._base, name=name, contract={}, plan={})
        lease = self._leases.claim(Jobs(self._database).submit(submission)[0].id, "bench")
        assert lease
        return lease

    def finish(self, lease: Lease, stored: TrainedAdapter, alias: str) -> tuple[float, float]:
        """Commit the transaction that makes the job succeed, publishes its adapter and moves the alias.

        Returns:
            the end of the transaction on the clock ``time.perf_counter``, and its duration in seconds.
        """
        began = time.perf_counter()
        adapter = NewAdapter(
            id=stored.adapter_id,
            digest=stored.adapter_id.partition("@")[2],
            base_model=self._base,
            step=1,
            final=True,
            published=True,
            manifest={},
        )
        self._leases.finish(lease, {}, adapters=[adapter], alias=alias)
        done = time.perf_counter()
        return done, done - began

    def close(self) -> None:
        """Disconnect from the database."""
        self._database.close()


def cache_of(base: str) -> dict[str, int]:
    """Return the KV cache of a server of this base, as a serving setting; empty if the replica chooses it."""
    return {"serving_kv_cache_bytes": CACHE_BYTES} if base == SMOLLM2 else {}


@contextmanager
def installation(home: Path, base: str, capacity: dict[str, int], *, smoke: bool) -> Iterator[Stack]:
    """Run the whole installation around one base.

    Args:
        home: an empty folder.
        base: one of ``bench.harness.bases.BASES``.
        capacity: numbers and sizes that fit into memory, as serving settings.
        smoke: whether a new base is one for a smoke run.
    """
    add_base(Settings(home=home), base, smoke=smoke)
    environment = {f"MENS_{name.upper()}": str(value) for name, value in capacity.items()}
    with running_stack(Stack(home, base, environment=environment)) as stack:
        yield stack


@contextmanager
def plain_vllm(home: Path, base: str, key: str, capacity: dict[str, int]) -> Iterator[str]:
    """Yield the URL of a vLLM with a replica's engine options and without Mens: no guard, no resolver, its own load
    route.

    Args:
        home: home folder of the replica's installation.
        base: base that it serves.
        key: key of the replica and of this server.
        capacity: the replica's capacity, as serving settings.
    """
    own: dict[str, Any] = {"serving_key": key, "serving_port": free_port(), **capacity}
    settings = ServingSettings(home=home, serving_base=base, **own)
    launch = prepare(settings)
    argv = engine_argv(launch)[len(ENTRY_POINT) :]
    # The guard is left out: the option and its value.
    at = argv.index("--middleware")
    argv[at : at + 2] = []
    url, log = f"http://127.0.0.1:{settings.serving_port}", home / "logs" / "plain-vllm.log"
    # Without the plugin vLLM has no resolver; its load route stays open, and no guard closes it.
    environment = {**engine_env(launch), "VLLM_PLUGINS": ""}
    with server(["-m", "vllm.entrypoints.openai.api_server", *argv], f"{url}/health", START_SECONDS, environment, log):
        yield url
