"""A model whose weights are read when a layer is computed and dropped afterwards, so that it needs only the memory of
one block.

transformers builds the model without weights, peft adds its layers, and accelerate's hooks request each tensor from
:class:`FolderWeights` at the moment that it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload, init_empty_weights
from peft import PeftConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from shared.artifacts.manifests import WEIGHTS_NAME
from shared.base_models.config import parse_model_config
from shared.base_models.families import join_name
from shared.base_models.tensors import HEAD
from shared.base_models.weights import TensorInfo, find_shards, read_tensors
from worker.merging.shards import ShardReader
from worker.training.model.layer_names import PEFT_PREFIX, namespaces
from worker.training.model.nf4 import through_nf4


class FolderWeights(Mapping[str, torch.Tensor]):
    """Tensors in float32 by their names in the trained class, read again at each access.

    Args:
        base: a model's folder.
        adapter: an adapter's folder, if its layers are needed too.
        quantised: names, as the base stores them, of the weights that are returned quantised to NF4 and back, as in
            training.
        double_quant: whether the scales of NF4's blocks are quantised too.
    """

    def __init__(
        self,
        base: Path,
        adapter: Path | None = None,
        quantised: AbstractSet[str] = frozenset(),
        double_quant: bool = True,
    ) -> None:
        self._quantised, self._double_quant = quantised, double_quant
        self._trained, self._stored = namespaces(base)
        spec = parse_model_config(json.loads((base / "config.json").read_bytes())).spec
        self._embedding = join_name(self._stored, spec.embedding)
        files = [base / name for name in find_shards(base)] + ([adapter / WEIGHTS_NAME] if adapter else [])
        self._tensors: dict[str, tuple[Path, TensorInfo]] = {
            name: (path, info) for path in files for name, info in read_tensors(path).items()
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        key = self._stored_name(name)
        path, info = self._tensors[key]
        with ShardReader(path) as shard:
            tensor = shard.tensor(info)
        return (through_nf4(tensor, self._double_quant) if key in self._quantised else tensor).float()

    def _stored_name(self, name: str) -> str:
        name = name.removeprefix(f"{PEFT_PREFIX}.").replace(".base_layer.", ".")
        if not name.startswith(f"{HEAD}."):
            name = join_name(self._stored, name.removeprefix(self._trained).removeprefix("."))
        if ".lora_" in name:
            return f"{PEFT_PREFIX}.{name.replace('.default.', '.')}"
        # A tied model stores no head.
        return name if name in self._tensors or name != f"{HEAD}.weight" else self._embedding

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def streamed_model(base: Path, weights: FolderWeights, adapter: Path | None = None) -> Any:
    """Return the causal language model of a folder, with its weights from ``weights``, on the CPU in float32.

    Args:
        base: the folder that has the config.
        adapter: the folder of an adapter that peft adds; ``weights`` must contain its tensors.
    """
    config = AutoConfig.from_pretrained(base, trust_remote_code=False, local_files_only=True).get_text_config()
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    # Whole blocks, because some layers, such as a convolution, read the weights of their parts without calling them.
    blocks = list(model._no_split_modules or ())  # noqa: SLF001  # where transformers names them
    if adapter:
        model = get_peft_model(model, PeftConfig.from_pretrained(adapter), low_cpu_mem_usage=True)
    cpu_offload(model, torch.device("cpu"), state_dict=weights, preload_module_classes=blocks)
    return model.eval()
