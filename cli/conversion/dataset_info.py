"""LLaMA-Factory's ``dataset_info.json``: the meaning of a file's columns, and the names of its speakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from cli.conversion.reading import Tags
from shared.datasets.forms.recognition import ROLES, RowForm
from shared.errors import Code, InvalidRequest

_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_NAMES = {"messages": "conversations", "kto_tag": "label"}
"""Our names by LLaMA-Factory's, if they differ."""
_DEFAULT_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output", "history": "history"},
    "sharegpt": {"messages": "conversations"},
}
_COMMON_COLUMNS = dict.fromkeys(("system", "tools", "images", "videos", "audios"))
_ROLE_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}


class _DatasetEntry(msgspec.Struct, frozen=True):
    file_name: str = ""
    formatting: Literal["alpaca", "sharegpt"] = "alpaca"
    ranking: bool = False
    columns: dict[str, str | None] = {}
    tags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Rules for reading the rows of a file."""

    form: RowForm
    columns: Mapping[str, str]
    tags: Tags


def read_dataset_info(path: Path, source: Path) -> DatasetInfo:
    """Return the entry for a file: by the file's name, or by the entry's own name.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: it lacks such an entry, or is broken.
    """
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        names = {name: msgspec.json.decode(entry, type=_DatasetEntry) for name, entry in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(
            f"{path} is not a valid dataset_info.json of LLaMA-Factory: {error}.",
            "Give LLaMA-Factory's dataset_info.json.",
        ) from None
    chosen = [
        entry for name, entry in names.items() if source.name == Path(entry.file_name).name or name == source.stem
    ]
    if not chosen:
        message = f"{path} has no entry whose file_name is {source.name!r}."
        raise _invalid(message, "Give the data file that an entry names, or leave --dataset-info out.")
    return _info(chosen[0])


def _info(entry: _DatasetEntry) -> DatasetInfo:
    columns = {**_DEFAULT_COLUMNS[entry.formatting], **{name: name for name in _COMMON_COLUMNS}}
    columns = {ours: theirs for ours, theirs in (columns | entry.columns).items() if theirs}
    if entry.formatting == "sharegpt":
        names = {theirs: _NAMES.get(name, name) for name, theirs in columns.items()}
        roles = {tag.lower(): role for name, role in _ROLE_TAGS.items() if (tag := entry.tags.get(name))}
        tags = Tags(entry.tags.get("role_tag", "from"), entry.tags.get("content_tag", "value"), ROLES | roles)
    else:
        names, tags = {theirs: _ALPACA.get(name, _NAMES.get(name, name)) for name, theirs in columns.items()}, Tags()
    form = RowForm.SHAREGPT if entry.formatting == "sharegpt" else RowForm.ALPACA
    return DatasetInfo(RowForm.PREFERENCE if entry.ranking else form, names, tags)


def _invalid(message: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param="dataset_info")
