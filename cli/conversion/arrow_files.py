"""Rows of Parquet files, Arrow files and folders saved by the library ``datasets``, a batch at a time.

A typed table has all keys in every object; keys without a value are null in it, and are left out of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.conversion.sources import choose_split
from shared.datasets.forms.advice import SAVED, SAVED_SPLITS, splits_by_name
from shared.errors import Code, InvalidRequest, Unavailable

BATCH_ROWS = 512


def arrow_rows(path: Path, split: str = "") -> Iterator[dict[str, Any]]:
    """Yield the rows of a file or a folder.

    Args:
        split: the part of a folder, if it has several.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: the file is broken, or the folder is not one of these.
        Unavailable: ``PROGRAM_FAILED``: pyarrow is not installed.
    """
    arrow = _pyarrow()
    for file in _files(path, split):
        try:
            for batch in _batches(file):
                yield from (_without_nulls(row) for row in batch.to_pylist())
        except (arrow.ArrowException, OSError) as error:
            message = f"{file} cannot be read: {str(error).splitlines()[0][:200]}."
            raise InvalidRequest(
                Code.REQUEST_INVALID, message, remedy="Write the file again.", param="input"
            ) from error


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise Unavailable(
            Code.PROGRAM_FAILED,
            "Parquet and Arrow files need the package pyarrow, which is not installed.",
            remedy="Install the extra: `pip install 'mens[parquet]'`.",
        ) from error
    return pa


def _files(path: Path, split: str) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / SAVED_SPLITS).is_file():
        names = _named(path / SAVED_SPLITS, "splits")
        path /= choose_split(names, split, path)
    if (path / SAVED).is_file():
        state = json.loads((path / SAVED).read_bytes())
        if state.get("_indices_data_files"):
            message = f"{path} keeps the order of its rows in a separate index file."
            remedy = "Save it again: `dataset.flatten_indices().save_to_disk(FOLDER)`."
            raise InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param="input")
        return [path / name for name in _named(path / SAVED, "_data_files", "filename")]
    files = sorted(file for file in path.rglob("*") if file.suffix in (".parquet", ".arrow"))
    if not files:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"{path} contains neither Parquet nor Arrow files.",
            remedy="Name a file, or a folder saved by `datasets` (save_to_disk).",
            param="input",
        )
    groups = splits_by_name(files)
    if split or len(groups) > 1:
        chosen = choose_split(groups, split, path)
        files = [file for file in files if file.name.startswith(f"{chosen}-")]
    return files


def _named(path: Path, key: str, inner: str = "") -> list[str]:
    """Return the names of files or folders that a JSON file next to them lists.

    Raises:
        InvalidRequest: one of them would be outside of the folder, or the file is broken.
    """
    try:
        listed = json.loads(path.read_bytes())[key]
        names = [item[inner] if inner else item for item in listed]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path} does not list the files of the dataset."
        raise InvalidRequest(
            Code.REQUEST_INVALID, message, remedy="Save it again with `Dataset.save_to_disk`.", param="input"
        ) from error
    if bad := next((name for name in names if not isinstance(name, str) or Path(name).name != name), None):
        message = f"{path} names {str(bad)[:80]!r}, which is not a file of this folder."
        raise InvalidRequest(
            Code.REQUEST_INVALID, message, remedy="Save it again with `Dataset.save_to_disk`.", param="input"
        )
    return names


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    with file.open("rb") as opened:
        head = opened.read(6)
        opened.seek(0)
        if head.startswith(b"PAR1"):
            yield from parquet.ParquetFile(opened).iter_batches(batch_size=BATCH_ROWS)
        elif head == b"ARROW1":
            reader = pa.ipc.open_file(opened)
            for number in range(reader.num_record_batches):
                yield from _slices(reader.get_batch(number))
        else:
            for batch in pa.ipc.open_stream(opened):
                yield from _slices(batch)


def _slices(batch: Any) -> Iterator[Any]:
    """Yield parts of a batch, because as Python objects a row needs many times its bytes."""
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
