"""Bases from GGUF files: a program of the worker dequantises them into the home folder, with the file's digest in the
catalogue.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cli.standalone.base_changes import check_name, refuse_copy
from cli.standalone.base_facts import check_base
from cli.standalone.worker_programs import run_worker_program
from shared.base_models.catalog import (
    BaseModelEntry,
    GgufOrigin,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.errors import Code, Conflict, MensError, NotFound
from shared.hashing import digest_file
from shared.settings import Settings


def add_gguf(
    settings: Settings,
    name: str,
    file: Path,
    license: str | None = None,
    learning_rate: float | None = None,
    *,
    allow_copy: bool = False,
) -> BaseModelEntry:
    """Dequantise a GGUF file into ``bases/NAME`` of the home folder, and add that to the catalogue.

    Args:
        settings: settings of the installation.
        name: name of the base; an existing base of that name is replaced if it is from the same file.
        file: the GGUF file; it is not needed afterwards.
        license: None takes the file's license.
        learning_rate: see :class:`BaseModelEntry`.
        allow_copy: accept a file that the catalogue has under another name.

    Raises:
        MensError: the file is missing, damaged or cannot be converted, the name is taken, the catalogue has the file under
            another name, or the disk or memory is full.
        ValidationError: not a valid name for a base.
    """
    from shared.base_models.gguf_conversion import check_convertible
    from shared.base_models.gguf_file import read_gguf_header

    if not file.is_file():
        raise NotFound(Code.MODEL_NOT_FOUND, f"The file {file} does not exist.", param="path")
    header = read_gguf_header(file)
    check_convertible(file, header)
    stated = header.metadata.get("general.license")
    origin = GgufOrigin(file=file.name, sha256=digest_file(file), stored_type=header.stored_type)
    folder = settings.home / "bases" / name
    # Before any work: an invalid name must not become a folder.
    entry = BaseModelEntry(
        name=name,
        source=LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent)),
        digests={file.name: origin.sha256},
        license=license or (stated[:80] if isinstance(stated, str) else None),
        learning_rate=learning_rate,
        gguf=origin,
    )
    for base in load_catalog(settings.catalog_path).bases:
        if base.name == name and base.gguf == origin and folder.is_dir():
            return base
    if folder.exists() or any(base.name == name for base in load_catalog(settings.catalog_path).bases):
        raise Conflict(
            Code.NAME_INVALID,
            f"The base {name} already exists.",
            remedy=f"Choose another name, or remove that base first: `mens base remove {name}`.",
            param="name",
        )
    check_name(settings, name)
    if not allow_copy:
        refuse_copy(settings, name, lambda base: base.gguf is not None and base.gguf.sha256 == origin.sha256)
    folder.parent.mkdir(parents=True, exist_ok=True)
    run_worker_program("worker.bases.gguf_base", str(file), str(folder))
    try:
        check_base(folder)
    except MensError:
        shutil.rmtree(folder)
        raise
    entry = entry.model_copy(update={"digests": digest_model_folder(folder)})
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry
