"""One tiny base model, a storage, real peft adapters, and one real vLLM server for the whole test session."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.adapters import AdapterStore
from serving.runtime import open_store
from serving.settings import ServingSettings
from shared.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.manifest import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.storage import Storage

# Before torch is imported: a second thread makes tiny matrices slower, much slower beside another process.
os.environ["OMP_NUM_THREADS"] = "1"

KEY = "test-serving-key"
START_SECONDS = 180
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CORPUS = ["the red fox runs near the forest", "a ship sails by the stars", "user assistant system hello"]
CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}{{ '<|im_start|>tool\\n' + tool | tojson + '<|im_end|>\\n' }}{% endfor %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call.function | tojson }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass
class Lab:
    """One installation in a folder."""

    home: Path
    base: Path
    entry: BaseModelEntry
    storage: Storage
    made: dict[str, AdapterManifest] = field(default_factory=dict)

    def environment(self, **more: object) -> dict[str, str]:
        """MENS_ variables of this installation."""
        values = {"home": self.home, "serving_base": self.entry.name, "serving_key": KEY, **more}
        return {f"MENS_{name.upper()}": str(value) for name, value in values.items()}

    def settings(self, **more: Any) -> ServingSettings:
        """Settings of this installation."""
        return ServingSettings(home=self.home, serving_base=self.entry.name, serving_key=KEY, **more)

    def store(self, cache: Path | None = None, max_rank: int = 16) -> AdapterStore:
        """A store of this installation; with a cache folder of its own if one is given."""
        if cache is None:
            return open_store(self.settings(serving_max_lora_rank=max_rank))
        return AdapterStore(self.storage, base=self.entry, base_folder=self.base, cache=cache, max_rank=max_rank)

    def folder(self, manifest: AdapterManifest) -> Path:
        """Where the storage holds an adapter."""
        return self.storage.folder("adapters", manifest.digest)

    def publish(self, name: str, *, seed: int = 0, rank: int = 8, **changes: Any) -> AdapterManifest:
        """Make a peft adapter with effect, and store it; `changes` are to the manifest. The same call is made once."""
        label = repr((name, seed, rank, sorted(changes.items())))
        if label not in self.made:
            folder = self.home / "made" / hashlib.sha256(label.encode()).hexdigest()[:16]
            shutil.copytree(self._saved(seed, rank), folder)
            self.made[label] = self.store_adapter(folder, describe(self, folder, name, rank, **changes))
        return self.made[label]

    def _saved(self, seed: int, rank: int) -> Path:
        """What peft writes for these two, made once: many adapters differ in their manifest only."""
        folder = self.home / "saved" / f"seed-{seed}-rank-{rank}"
        if not folder.exists():
            save_adapter(self.base, folder, seed=seed, rank=rank)
        return folder

    def store_adapter(self, folder: Path, manifest: AdapterManifest) -> AdapterManifest:
        """Put a folder into the storage under the manifest."""
        (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        self.storage.put_folder("adapters", manifest.digest, folder, sorted(manifest.files), MANIFEST_NAME)
        return manifest


def save_adapter(base: Path, folder: Path, *, seed: int, rank: int) -> None:
    """A peft adapter on every linear layer, with a random B: an untrained B is zero and has no effect."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    peft_model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=MODULES))
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1)
    peft_model.save_pretrained(folder)


def describe(lab: Lab, folder: Path, name: str, rank: int, **changes: Any) -> AdapterManifest:
    """The manifest of an adapter folder."""
    from shared.layout import read_tensors

    keys = sorted(key for key in read_tensors(folder / WEIGHTS_NAME) if key.endswith(".lora_A.weight"))
    layers = [key.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for key in keys]
    digests = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in (WEIGHTS_NAME, CONFIG_NAME)}
    fields: dict[str, Any] = {
        "adapter_method": "qlora",
        "quant": {"base_quant": "nf4"},
        "base_key_map": {f"l.{layer}": f"{layer}.weight" for layer in layers},
        "layer_order": [f"l.{layer}" for layer in layers],
        "vocab": 1,
        "d_model": 64,
        "rank": rank,
        "alpha": 2 * rank,
        "base_model": lab.entry.name,
        "name": name,
        "base_digests": lab.entry.digests,
        "contract_digest": "0" * 64,
        "template_digest": "0" * 64,
        "step": 1,
        "files": digests,
    }
    return AdapterManifest.model_validate(fields | changes)


def build_base(folder: Path) -> None:
    """Write a random Qwen3 of 64 units with a byte-level tokenizer; head_dim 32 is the least that vLLM's CPU takes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    torch.manual_seed(0)
    # The wide initial range makes the most likely token stand out, so that rounding cannot swap the first two.
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "initializer_range": 0.2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    tokens = {"vocab_size": 320, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = Qwen3Config(**shape, **heads, **tokens, max_position_embeddings=256, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the base model that all serving tests share."""
    folder = tmp_path_factory.mktemp("serving") / "base"
    build_base(folder)
    return folder


@pytest.fixture(scope="session")
def lab(tiny_base: Path) -> Lab:
    """The installation around it: catalogue and storage."""
    home = tiny_base.parent / "home"
    entry = BaseModelEntry(
        name="tiny-base", source=LocalSource(path=str(tiny_base)), digests=digest_model_folder(tiny_base)
    )
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))
    return Lab(home, tiny_base, entry, Storage(home / "storage"))


@dataclass
class Server:
    """A running replica."""

    url: str
    log: Path
    start_seconds: float
    pid: int

    def client(self, key: str | None = KEY) -> httpx.Client:
        """A client that sends the key, unless it is None."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)


@pytest.fixture(scope="session")
def vllm_server(lab: Lab) -> Iterator[Server]:
    """A replica of the lab's base."""
    with start_server(lab) as server:
        yield server


@contextmanager
def start_server(lab: Lab, **settings: object) -> Iterator[Server]:
    """`python -m serving` on a free port, in a session of its own, so that nothing outlives the tests."""
    port = _free_port()
    log = lab.home / f"vllm-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving"],
            env={**os.environ, **lab.environment(serving_port=port, **settings)},
            cwd=lab.home,  # not the checkout: the installed package must be enough
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stop = _stopper(process)
    try:
        yield Server(f"http://127.0.0.1:{port}", log, _wait_ready(process, port, log), process.pid)
    finally:
        stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stopper(process: subprocess.Popen[bytes]) -> Callable[[], None]:
    def stop() -> None:
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            try:
                os.killpg(process.pid, number)
                process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    atexit.register(stop)
    return stop


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> float:
    started = time.monotonic()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() - started < START_SECONDS:
        if process.poll() is not None:
            break
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"vLLM did not start; the end of its log:\n{log.read_text(errors='replace')[-6000:]}", pytrace=False)


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file in place."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
