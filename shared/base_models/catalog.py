"""The catalogue of base models: name, source, digests. One JSON file that every tier reads.

    {"version": 1, "bases": [{"name": "mens-tiny", "source": {"kind": "local", "path": "bases/mens-tiny"}, ...}]}

A base is a local folder (relative paths are relative to the catalogue file) or a hub repository pinned to a commit.
Its digest covers the bytes of every file that decides what the model generates: weights, config, tokenizer, template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from shared.base_models.config import ModelValue
from shared.base_models.weights import PICKLE_SUFFIXES
from shared.durable_files import write_durably
from shared.errors import ArtifactInvalid, Code, InvalidRequest, NotFound
from shared.hashing import digest_file, digest_json

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "model.safetensors.index.json",
    "*.safetensors",
)
"""Files that are fetched from a hub and covered by a digest. Never pickle (`.bin`, `.pt`), never Python code."""
UNUSED_FILES = (
    *(f"*{suffix}" for suffix in sorted(PICKLE_SUFFIXES)),
    "*.py",
    "*.md",
    "*.pdf",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
    "USE_POLICY*",
    ".*",
    "model_manifest.json",
    "model_signature.json",
    "merge_fidelity.json",
    "merge_probes.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""Other files that a folder may have, because nothing here opens them: pickle, code, licences, files of hubs and of
git, records of a merged model, scaling of pictures. All files outside both lists are refused, because transformers or
vLLM might use them: a further template, tokenizer or config.
"""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
CatalogName = Annotated[
    str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")
]


class LocalSource(ModelValue):
    """A folder on this machine or on a shared volume."""

    kind: Literal["local"] = "local"
    path: str


class HubSource(ModelValue):
    """A hub repository, pinned: a branch may move, a commit cannot."""

    kind: Literal["hub"] = "hub"
    repo: str = Field(min_length=1)
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class TwinOf(ModelValue):
    """The base that a dequantised twin was made from. The twin contains the weights that training on that base computes
    with.
    """

    name: CatalogName
    digests: dict[str, Sha256] = Field(description="SHA-256 of each file of that base.", min_length=1)
    double_quant: bool = Field(description="True: the blocks' scales were quantised too.")


class MergedFrom(ModelValue):
    """The merged model that a base was made from. The base is offered once its replicas are measured (docs/certificates.md)."""

    digest: Sha256 = Field(description="SHA-256 of the merged model's manifest.")
    adapter_id: str
    base_model: CatalogName = Field(description="Name of the base that the adapter was merged into.")
    probes_digest: Sha256 = Field(description="SHA-256 of the probes that its replicas are measured with.")


class GgufOrigin(ModelValue):
    """The GGUF file that a base was dequantised from."""

    file: str = Field(description="Its name.")
    sha256: Sha256
    stored_type: str = Field(description="Type of the blocks that most of its weights were stored in, e.g. Q4_1.")


class BaseModelEntry(ModelValue):
    """One base model that may be tuned and served."""

    name: CatalogName = Field(description="The name in a contract's model section and in a chat request's `model`.")
    source: LocalSource | HubSource = Field(discriminator="kind")
    digests: dict[str, Sha256] = Field(description="SHA-256 of each model file, by file name.", min_length=1)
    license: str | None = None
    learning_rate: float | None = Field(
        None, gt=0, description="Learning rate at which this base learns well; auto uses it."
    )
    twin_of: TwinOf | None = Field(None, description="Null unless `mens base dequantize` made it.")
    merged_from: MergedFrom | None = Field(None, description="Null unless it is a merged model.")
    gguf: GgufOrigin | None = Field(None, description="Null unless it was dequantised from a GGUF file.")
    template_arguments: dict[str, bool | int | str] = Field(
        {},
        description=(
            "For a merged model: the template arguments that its adapter was trained with; they are the default of "
            "its chats."
        ),
    )

    @property
    def digest(self) -> str:
        """One digest for the whole base: SHA-256 over the canonical JSON of its files' digests."""
        return digest_json(self.digests)

    @property
    def tuned_digest(self) -> str:
        """Digest of the base whose adapters this one serves: its own or, for a twin, that of its original."""
        return digest_json(self.twin_of.digests) if self.twin_of else self.digest

    def repository_of(self, digests: Mapping[str, str]) -> HubSource | None:
        """Return the hub repository of files with these digests; None if they came from a folder, or if the name has got other
        files since.
        """
        return self.source if isinstance(self.source, HubSource) and self.digests == digests else None


class Catalog(ModelValue):
    """All base models of an installation."""

    version: Literal[1] = 1
    bases: list[BaseModelEntry] = []

    def get(self, name: str) -> BaseModelEntry:
        """Return the entry of that name.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``, naming the available bases.
        """
        for base in self.bases:
            if base.name == name:
                return base
        names = ", ".join(base.name for base in self.bases) or "none yet"
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"The base model {name!r} is not in the catalogue (available: {names}).",
            remedy="Use one of the available names, or add the model with `mens base add`.",
            param="model",
        )

    def get_default(
        self, name: str, serves_adapters_of: Callable[[str], bool | None] = lambda _digest: None
    ) -> BaseModelEntry:
        """Return the base for a request that names none: the default base, or else the only base, or else the only one
        that is served.

        Args:
            name: name of the default base.
            serves_adapters_of: says for a base's digest whether a replica serves its adapters; None: not known.

        Raises:
            NotFound: ``MODEL_NOT_FOUND``: several qualify, or none does.
        """
        defaults = [base for base in self.bases if base.name == name]
        for bases in (defaults, self.bases, [base for base in self.bases if serves_adapters_of(base.digest)]):
            if len(bases) == 1:
                return bases[0]
        raise unnamed_base([base.name for base in self.bases])

    def having(self, entry: BaseModelEntry) -> Catalog:
        """Return this catalogue with the entry added, or replaced if its name exists."""
        others = [base for base in self.bases if base.name != entry.name]
        return Catalog(bases=sorted([*others, entry], key=lambda base: base.name))

    def without(self, name: str) -> Catalog:
        """Return this catalogue without the entry of that name."""
        return Catalog(bases=[base for base in self.bases if base.name != name])


def unnamed_base(names: Sequence[str]) -> NotFound:
    """Return the error for a request without a model, in an installation that has these bases, of which none is the default."""
    if not names:
        what, remedy = "the catalogue has none", "Add one by `mens base add`, or plan for a folder by `--model FOLDER`."
    else:
        what, remedy = (
            f"the catalogue has several: {', '.join(names)}",
            f"Name one, on the command line by `--model {names[0]}`.",
        )
    return NotFound(Code.MODEL_NOT_FOUND, f"No base model was named, and {what}.", remedy=remedy, param="model")


def load_catalog(path: Path) -> Catalog:
    """Read the catalogue; an absent file is an empty one.

    Raises:
        InvalidRequest: ``CATALOG_INVALID`` naming the file and the first fault.
    """
    try:
        return Catalog.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Catalog()
    except ValidationError as error:
        fault = error.errors()[0]
        # For a file that is not JSON, the parser's message already contains line and column.
        where = ".".join(str(part) for part in fault["loc"])
        place = f" at {where}" if where else ""
        raise InvalidRequest(
            Code.CATALOG_INVALID, f"The catalogue {path} is broken{place}: {fault['msg']}.", param=str(path)
        ) from None


def save_catalog(path: Path, catalog: Catalog) -> None:
    """Replace the file; a reader sees either the old or the new one."""
    write_durably(path, catalog.model_dump_json(indent=2) + "\n")


def model_files(folder: Path) -> list[Path]:
    """Return the files of a folder that decide what the model generates, by name."""
    return sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()})


def refuse_unknown_files(folder: Path) -> None:
    """Refuse a folder with files that no digest covers and that may be loaded nevertheless.

    Raises:
        ArtifactInvalid: ``BASE_FILE_UNKNOWN``; the message names the first of these files, the details name all.
    """
    covered = {*model_files(folder), *(path for pattern in UNUSED_FILES for path in folder.glob(pattern))}
    if unknown := sorted(path.name for path in folder.iterdir() if path not in covered):
        raise ArtifactInvalid(
            Code.BASE_FILE_UNKNOWN,
            f"{unknown[0]} in the base model's folder is not covered by a digest, and a library may load it.",
            remedy=f"Move it out of the folder; only these files are used: {', '.join(MODEL_FILES)}.",
            param=unknown[0],
            details={"unknown": unknown[:100]},
        )


def digest_model_folder(folder: Path) -> dict[str, str]:
    """Hash every model file in a folder; return SHA-256 by file name.

    Raises:
        ArtifactInvalid: ``CATALOG_INVALID`` when config.json, tokenizer.json or the safetensors weights are missing;
            ``BASE_FILE_UNKNOWN``.
    """
    refuse_unknown_files(folder)
    files = model_files(folder)
    names = {path.name for path in files}
    missing = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    if missing:
        raise ArtifactInvalid(
            Code.CATALOG_INVALID,
            f"{folder} is not a base model: {', '.join(missing)} missing.",
            remedy="Point at a folder with config.json, tokenizer.json and safetensors weights (pickle is refused).",
            param=str(folder),
        )
    return {path.name: digest_file(path) for path in files}


def verify_model_folder(entry: BaseModelEntry, folder: Path) -> None:
    """Check that a folder holds exactly the bytes that the catalogue names, and no further model file.

    Raises:
        ArtifactInvalid: ``BASE_FILE_UNKNOWN``, or ``BASE_DIGEST_MISMATCH`` naming the first file that differs.
    """
    refuse_unknown_files(folder)
    # A further file counts too, because it may be loaded: a chat template, another shard.
    present = {path.name for path in model_files(folder)}
    for name in sorted(present | entry.digests.keys()):
        if name not in present or digest_file(folder / name) != entry.digests.get(name):
            raise ArtifactInvalid(
                Code.BASE_DIGEST_MISMATCH,
                f"{name} of the base model {entry.name} is not the file that the catalogue names.",
                remedy="Restore the file, or register the changed model under a new name with `mens base add`.",
                param=name,
            )
