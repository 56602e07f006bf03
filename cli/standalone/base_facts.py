"""Checks of a new base's folder, and the facts by which people choose a base."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.client.connection import note
from cli.output import format_size
from cli.standalone.home import installed_database
from cli.standalone.worker_programs import run_worker_program
from shared.base_models.catalog import BaseModelEntry, HubSource, load_catalog
from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.cpu_heads import unserved_head
from shared.base_models.tensors import expected_tensors, parameter_count
from shared.base_models.weights import json_object
from shared.contract.choices import TokenizerMode
from shared.errors import ArtifactInvalid, Code, MensError, Unavailable
from shared.preflight.base_model import preflight_model
from shared.settings import Settings
from shared.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from shared.database.jobs import TrainingRate

SHOWN_TOKENS = 5


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """Properties of a base, from its config.

    Attributes:
        parameters: parameters of the language model; a tied head counts once.
        size: bytes of the weight files.
        context: longest context in tokens; None if the config has none.
    """

    family: str
    parameters: int
    size: int
    context: int | None
    dtype: str | None

    def __str__(self) -> str:
        context = f"context {self.context:,}, " if self.context else ""
        family, parameters, _, dtype, size = self.columns
        return f"{family}, {parameters} parameters, {context}{dtype}, {size}"

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Family, parameters, context, dtype and size as strings."""
        scale, unit = (1e9, "B") if self.parameters >= 1e9 else (1e6, "M")
        context = f"{self.context:,}" if self.context else "not stated"
        return self.family, f"{self.parameters / scale:.3g}{unit}", context, self.dtype or "", format_size(self.size)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def check_base(folder: Path, report: Callable[[str], None] = note) -> None:
    """Refuse a folder that can be neither tuned nor served, before it is added to a catalogue.

    Args:
        folder: the model's folder.
        report: receives a note if a check was left out, or if a CPU cannot serve the base.

    Raises:
        MensError: the code of the first check that fails: config, weights by shard, template, tokens without a row of the
            embedding, a tokenizer that transformers reads differently.
    """
    preflight_model(folder, tokenizer_mode=TokenizerMode.HF)
    tokenizer = Tokenizer.load(folder)
    if unknown := tokenizer.tokens_without_embedding:
        shown = ", ".join(f"{token!r} (id {id_})" for id_, token in list(unknown.items())[:SHOWN_TOKENS])
        raise ArtifactInvalid(
            Code.EMBEDDING_ROW_MISSING,
            f"The tokenizer has {len(unknown)} tokens that the embedding ({tokenizer.embedding_rows} rows) has no "
            f"row for: {shown}.",
            remedy=(
                "Resize the model's embedding to its tokenizer (transformers' resize_token_embeddings) and save "
                "both, or remove the tokens from tokenizer.json."
            ),
            param="tokenizer.json",
            details={"tokens": {token: id_ for id_, token in list(unknown.items())[:100]}},
        )
    if head := unserved_head(_config_of(folder)):
        report(f"note: {head} It can be trained here, but only a GPU can serve it and what is tuned on it.")
    if importlib.util.find_spec("transformers") is None:
        report("note: transformers is not installed here, so only the trainer will compare the tokenizers.")
        return
    run_worker_program("worker.bases.tokenizer_check", str(folder))


def describe_base(entry: BaseModelEntry, catalog_path: Path) -> BaseFacts | None:
    """Return the facts of a base whose files are on this machine; None if they are missing, or cannot be read."""
    folder = _present_folder(entry, catalog_path)
    if folder is None:
        return None
    try:
        return base_facts(_config_of(folder), folder)
    except (OSError, MensError):
        return None  # `mens base add` and the preflight report the fault.


def _config_of(folder: Path) -> ModelConfig:
    name = "config.json"
    return parse_model_config(json_object((folder / name).read_bytes(), name, Code.MODEL_CONFIG_INVALID))


def base_facts(config: ModelConfig, folder: Path) -> BaseFacts:
    """Return the facts of a base in a folder."""
    return BaseFacts(
        family=str(config.family),
        parameters=parameter_count(expected_tensors(config)),
        size=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        context=config.max_positions,
        dtype=config.dtype,
    )


def measured_rate(settings: Settings, base: BaseModelEntry) -> TrainingRate | None:
    """Return the rate of the last job that tuned a base; None without such a job or without an installation."""
    # By content: a folder's name is only a label, and may be that of another base.
    names = [entry.name for entry in load_catalog(settings.catalog_path).bases if entry.digest == base.digest]
    if not names or (database := installed_database(settings)) is None:
        return None
    from shared.database.jobs import Jobs  # slow to import

    try:
        rates = (Jobs(database).training_rate(name) for name in names)
        return next((rate for rate in rates if rate), None)
    except Unavailable as error:
        note(f"note: could not check whether a job of {base.name} was measured: {error.message}")
        return None
    finally:
        database.close()


def _present_folder(entry: BaseModelEntry, catalog_path: Path) -> Path | None:
    if not isinstance(entry.source, HubSource):
        folder = (catalog_path.parent / entry.source.path).resolve()
        return folder if folder.is_dir() else None
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from shared.base_models.hub import locate_fetched  # the hub's client is slow to import

    try:
        return locate_fetched(entry, catalog_path)
    except MensError:
        return None
