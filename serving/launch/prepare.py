"""Prepare a launch: determine every value that vLLM is started with.

    settings ─► catalogue entry and folder, verified ─► config ─► dtype ─► adapter sizes ─► KV cache, length ─► parsers,
    end tokens ─► Launch
                                                                           (memory, storage)  (memory)           (chat template)

`engine_args.py` converts a launch to vLLM's command line.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serving.launch.kv_cache import CacheSizes, check_free, choose_cache, own_length, weight_bytes
from serving.launch.lora_capacity import LoraSizes, choose_sizes
from serving.launch.parsers import Parsers, choose_parsers
from serving.process import find_base
from serving.settings import ServingSettings
from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME, parse_manifest
from shared.artifacts.merged_models import changed_file, read_model_manifest, verify_model_signature
from shared.artifacts.open_storage import open_storage
from shared.artifacts.signatures import read_trusted_keys
from shared.artifacts.storage import Storage
from shared.base_models.catalog import BaseModelEntry, verify_model_folder
from shared.base_models.config import ModelConfig, broken_model, parse_model_config
from shared.base_models.cpu_heads import unserved_head
from shared.base_models.cpu_threads import cpu_threads
from shared.base_models.families import LORA_FAMILIES
from shared.base_models.weights import json_object
from shared.errors import Code, InvalidRequest, MensError
from shared.host import allowed_cores, allowed_memory, available_memory
from shared.tokenization.tokenizer import Tokenizer

CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that one replica is started with.

    Attributes:
        folder: the base's files, verified.
        base_digest: the digest that the files were verified against.
        config: the base's config.
        dtype: dtype that vLLM is started with.
        threads: number of threads that compute, on a CPU.
        end_ids: token ids at which every answer ends, ascending. Empty for a base without a usable chat template; vLLM
            then uses only the end tokens of the base's config files.
    """

    settings: ServingSettings
    folder: Path
    base_digest: str
    config: ModelConfig
    dtype: str
    sizes: LoraSizes
    cache: CacheSizes
    threads: int
    parsers: Parsers
    end_ids: tuple[int, ...]

    def __str__(self) -> str:
        decisions = [str(self.cache), *([_threads(self.threads)] if self.settings.serving_device == "cpu" else [])]
        decisions += [str(self.sizes), str(self.parsers)]
        return f"Serving {self.settings.serving_base} in {self.dtype}: {'; '.join(decisions)}."


def prepare(settings: ServingSettings) -> Launch:
    """Verify the base and complete the settings.

    Raises:
        MensError: the replica may not start: ``NOT_SERVABLE_FAMILY``, ``NOT_SERVABLE_HEAD_SIZE``, ``SETTINGS_INVALID``,
            or an error of `find_base`, `verify_model_folder`, `check_signature`, `parse_model_config`, `choose_sizes`,
            `choose_cache` or `check_free`.
    """
    entry, folder = find_base(settings)
    check_quantization(settings, entry)
    verify_model_folder(entry, folder)
    check_signature(settings, entry, folder)
    config = _read_config(folder)
    check_head_sizes(settings, config)
    dtype = choose_dtype(settings, config)
    stored = stored_rank(open_storage(settings), entry)
    memory = settings.serving_memory_bytes or allowed_memory()
    sizes, cache = fitted(settings, config, dtype, stored, own_length(config, folder), memory)
    check_free(settings, cache, weight_bytes(config, dtype), available_memory())
    threads = settings.serving_cpu_threads or cpu_threads(config, allowed_cores())
    tokenizer: Tokenizer | None = None
    # A base without a usable chat template can only complete text, so it has no format of tool calls.
    with suppress(InvalidRequest):
        tokenizer = Tokenizer.load(folder)
    parsers = choose_parsers(settings, tokenizer)
    ends = served_end_ids(tokenizer, config)
    return Launch(settings, folder, entry.digest, config, dtype, sizes, cache, threads, parsers, ends)


def fitted(
    settings: ServingSettings, config: ModelConfig, dtype: str, stored: int, own_len: int | None, memory: int
) -> tuple[LoraSizes, CacheSizes]:
    """Return the sizes of adapters, and the served length with its KV cache; raise the error of `choose_cache`, else that of
    `choose_sizes`, if the memory is too small.
    """
    try:
        sizes = choose_sizes(settings, config, dtype=dtype, stored_rank=stored, memory=memory)
    except InvalidRequest as error:
        # Adapters may have a share of the memory. Where the base does not fit with them either, a larger share does not help.
        needed = error.details["needed_bytes"]
        least = LoraSizes(error.details["rank"], 1, 1, adapter_bytes=needed, room=needed)
        choose_cache(settings, config, least, dtype=dtype, own_len=own_len, memory=memory)
        raise
    return sizes, choose_cache(settings, config, sizes, dtype=dtype, own_len=own_len, memory=memory)


def check_signature(settings: ServingSettings, entry: BaseModelEntry, folder: Path) -> None:
    """Refuse a merged model without the signature of a trusted key, if trusted keys are set.

    Other bases have no signature: the operator chooses them by digest.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``: the signed manifest does not describe the files that are served.
    """
    is_merged = entry.merged_from is not None or (folder / MODEL_MANIFEST_NAME).exists()
    if settings.serving_trusted_keys is None or not is_merged:
        return
    manifest = read_model_manifest(folder)
    verify_model_signature(folder, manifest, read_trusted_keys(settings.serving_trusted_keys))
    for name, digest in entry.digests.items():
        if manifest.files.get(name) != digest:
            raise changed_file(name)


def check_quantization(settings: ServingSettings, entry: BaseModelEntry) -> None:
    """Refuse to round the weights of a twin, which holds the exact values that NF4 training computes with.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``.
    """
    if entry.twin_of and settings.serving_quantization:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"MENS_SERVING_QUANTIZATION: {settings.serving_quantization} would round the weights of {entry.name}. They "
            f"must stay exact, because it is the twin of {entry.twin_of.name}.",
            remedy=f"Leave it out, or serve the original: MENS_SERVING_BASE={entry.twin_of.name}.",
            param="MENS_SERVING_QUANTIZATION",
        )


def check_head_sizes(settings: ServingSettings, config: ModelConfig) -> None:
    """Refuse a base whose heads vLLM cannot compute on a CPU.

    Raises:
        InvalidRequest: ``NOT_SERVABLE_HEAD_SIZE``.
    """
    if settings.serving_device == "cpu" and (head := unserved_head(config)):
        raise InvalidRequest(
            Code.NOT_SERVABLE_HEAD_SIZE,
            str(head),
            remedy="Serve this base on a GPU (MENS_SERVING_DEVICE=cuda), or serve another base.",
            param=CONFIG_NAME,
        )


def choose_dtype(settings: ServingSettings, config: ModelConfig) -> str:
    """Choose the dtype in which vLLM computes; ``auto`` means the base's own.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: with this dtype the engine would end at its first request.
    """
    if settings.serving_device == "cuda":
        return settings.serving_dtype or "auto"
    dtype = settings.serving_dtype or ("bfloat16" if config.spec.hybrid else "float32")
    if config.spec.hybrid and dtype == "float32":
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            "MENS_SERVING_DTYPE: on a CPU vLLM computes the linear attention of a Qwen3.5 model only in bfloat16.",
            remedy="Set it to bfloat16, or leave it out.",
            param="MENS_SERVING_DTYPE",
        )
    return dtype


def served_end_ids(tokenizer: Tokenizer | None, config: ModelConfig) -> tuple[int, ...]:
    """Return the token ids at which every answer ends: the end tokens that training uses, if the model can generate
    them.
    """
    # vLLM uses these ids as column indices of the logits: an id beyond the size of the embedding would end the engine.
    return () if tokenizer is None else tuple(sorted(end for end in tokenizer.end_ids if end < config.vocab))


def stored_rank(storage: Storage, entry: BaseModelEntry) -> int:
    """Return the largest rank among the stored adapters of a base; 0 if none are stored.

    An adapter that cannot be read is ignored here; it is refused when a request names it.
    """
    own = [entry.digests, *([entry.twin_of.digests] if entry.twin_of else [])]
    ranks = [0]
    for digest in storage.digests("adapters"):
        try:
            manifest = parse_manifest(storage.manifest_bytes("adapters", digest, MANIFEST_NAME), digest)
        except (MensError, OSError):
            continue
        ranks.append(manifest.rank if manifest.base_digests in own else 0)
    return max(ranks)


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"


def _read_config(folder: Path) -> ModelConfig:
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise broken_model(Code.CONFIG_NOT_FOUND, f"The base's folder does not contain {CONFIG_NAME}", CONFIG_NAME)
    config = parse_model_config(json_object(path.read_bytes(), CONFIG_NAME, Code.MODEL_CONFIG_INVALID))
    if not config.spec.lora:
        raise InvalidRequest(
            Code.NOT_SERVABLE_FAMILY,
            f"The base is a {config.family} model, for which vLLM does not support adapters.",
            remedy=f"Serve a base of one of these families: {', '.join(sorted(LORA_FAMILIES))}.",
            param=CONFIG_NAME,
        )
    return config
