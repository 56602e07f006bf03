"""An installation for serving: one tiny base model in a catalogue, a storage, and real peft adapters in it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.adapter_store import AdapterStore
from serving.process import open_store
from serving.settings import ServingSettings
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.base_models.weights import read_tensors

# Before torch is imported: a second thread makes tiny matrices slower, and much slower next to another process.
os.environ["OMP_NUM_THREADS"] = "1"

KEY = "test-serving-key"
METRICS_KEY = "test-metrics-key"
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
class ServingInstallation:
    """An installation with one tiny base.

    Attributes:
        home: its folder.
        base: the base's folder.
        entry: the base's entry in the catalogue.
        storage: where adapters are published.
        save_adapter: makes an adapter's folder.
    """

    home: Path
    base: Path
    entry: BaseModelEntry
    storage: FolderStorage
    save_adapter: Callable[..., None]
    _published: dict[str, AdapterManifest] = field(default_factory=dict)

    def environment(self, **more: object) -> dict[str, str]:
        """MENS_ variables of this installation."""
        values = {
            "home": self.home,
            "serving_base": self.entry.name,
            "serving_key": KEY,
            "metrics_key": METRICS_KEY,
            **more,
        }
        return {f"MENS_{name.upper()}": str(value) for name, value in values.items()}

    def settings(self, **more: Any) -> ServingSettings:
        """Settings of this installation."""
        return ServingSettings(home=self.home, serving_base=self.entry.name, serving_key=KEY, **more)

    def store(self, cache: Path | None = None, max_rank: int = 16) -> AdapterStore:
        """Open an adapter store of this installation, with a separate cache folder if one is given."""
        if cache is None:
            return open_store(self.settings(serving_max_lora_rank=max_rank))
        return AdapterStore(self.storage, base=self.entry, base_folder=self.base, cache=cache, max_rank=max_rank)

    def folder(self, manifest: AdapterManifest) -> Path:
        """The stored folder of an adapter."""
        return self.storage.folder("adapters", manifest.digest)

    def publish(self, name: str, *, seed: int = 0, rank: int = 8, **changes: Any) -> AdapterManifest:
        """Make and store an adapter; `changes` are applied to the manifest. Equal calls share one adapter."""
        label = repr((name, seed, rank, sorted(changes.items())))
        if label not in self._published:
            # Made once for a seed and rank: many adapters differ in their manifest only.
            saved = self.home / "saved" / f"seed-{seed}-rank-{rank}"
            if not saved.exists():
                self.save_adapter(self.base, saved, seed=seed, rank=rank)
            folder = self.home / "made" / hashlib.sha256(label.encode()).hexdigest()[:16]
            shutil.copytree(saved, folder)
            self._published[label] = self.store_adapter(folder, describe_adapter(self, folder, name, rank, **changes))
        return self._published[label]

    def store_adapter(self, folder: Path, manifest: AdapterManifest) -> AdapterManifest:
        """Store a folder under the manifest's digest."""
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
    random_b(peft_model)
    peft_model.save_pretrained(folder)


def random_b(model: Any, deviation: float = 0.1) -> None:
    """Give every LoRA layer of a PEFT model a random B."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, deviation)


def describe_adapter(
    installation: ServingInstallation, folder: Path, name: str, rank: int, **changes: Any
) -> AdapterManifest:
    """The manifest of an adapter folder."""
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
        "base_model": installation.entry.name,
        "name": name,
        "base_digests": installation.entry.digests,
        "contract_digest": "0" * 64,
        "template_digest": "0" * 64,
        "step": 1,
        "files": digests,
    }
    return AdapterManifest.model_validate(fields | changes)


def build_base(folder: Path, positions: int = 256) -> None:
    """Write a random Qwen3 with 64 units and a byte-level tokenizer; 32 is the smallest head_dim that vLLM supports on
    a CPU.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = train_tokenizer()
    torch.manual_seed(0)
    # The wide initial range makes the most likely token stand out, so that rounding cannot swap the first two.
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "initializer_range": 0.2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    tokens = {"vocab_size": 320, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = Qwen3Config(**shape, **heads, **tokens, max_position_embeddings=positions, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_tokenizer() -> Any:
    """A byte-level tokenizer of at most 320 tokens, always the same."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )


def make_serving_installation(
    folder: Path,
    build_base: Callable[[Path], object] = build_base,
    save_adapter: Callable[..., None] = save_adapter,
) -> ServingInstallation:
    """Build the base in a folder, with an installation around it: catalogue and storage."""
    base, home = folder / "base", folder / "home"
    build_base(base)
    entry = BaseModelEntry(name="tiny-base", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))
    return ServingInstallation(home, base, entry, FolderStorage(home / "storage"), save_adapter)
