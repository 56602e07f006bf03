"""Advice on a file in another program's form: one sentence instead of an error for each line, and a remedy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from shared.datasets.forms.files import HEAD_BYTES, HINTS, REMEDIES, FileForm, recognise_file, wrapper_in
from shared.datasets.forms.recognition import DESCRIPTIONS, RowForm, is_foreign, recognise

CONVERT = "mens data convert FILE -o rows.jsonl"
_CONVERT_IT = f"Convert it: `{CONVERT}` writes rows for training and accounts for each that it leaves out."
_REMEDIES = {
    RowForm.PREFERENCE: "Set method.type to dpo (`--method dpo`) to learn the preferences; "
    f"`{CONVERT} --as-supervised` takes the chosen answers, and `--as-rated` makes a good and a bad answer of each "
    "pair, for kto.",
    RowForm.RANKING: f"`{CONVERT} --as-pairs` makes a pair for dpo of the best and the worst answer, and `--as-supervised` takes the best.",
    RowForm.TEXT: f"`{CONVERT}` divides strings with a known chat markup into turns; other strings have no answer to learn.",
    RowForm.KTO: "Set method.type to kto (`--method kto`) to learn from both kinds of answers; "
    f"`{CONVERT}` keeps the rows whose label is true and counts the others.",
}
_NAME_COLUMNS = (
    f"Name the two that hold question and answer: `{CONVERT} --columns QUESTION=prompt,ANSWER=response` writes rows "
    "for training. If LLaMA-Factory has the file, its own description names them: --dataset-info dataset_info.json."
)
DATASET_INFO = "dataset_info.json"
"""LLaMA-Factory's description of the data files next to it. The library ``datasets`` gives another file this name."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""The files by which a folder that ``datasets`` has saved is known: one data set, or several as splits."""
_ROW_FILES = (".jsonl", ".json", ".csv", ".tsv")
_METADATA = frozenset((DATASET_INFO, SAVED, SAVED_SPLITS, "dataset_infos.json"))
_COLUMNAR = {".parquet": "Parquet", ".arrow": "Arrow"}
_FOLDER_DEPTH = 3
_MAX_INFO_BYTES = 1 << 20
_OWN_KEYS = ("messages", "turns", "prompt", "response")
_SHOWN_KEYS, _SHOWN_CHARACTERS = 6, 40
TABLE_DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Endings of the names of tables, and their usual delimiters."""
COMMON = 0.5
"""Minimum share of the bad lines for their form to count as the file's form."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The form of a file, as the end of a sentence that begins with the file, and a remedy."""

    finding: str
    remedy: str


def advise(path: Path, bad_lines: int, forms: Mapping[str, int]) -> Advice | None:
    """Return advice on a file with bad lines; None if it has none, or its form is unknown.

    Args:
        bad_lines: number of its lines that are not rows.
        forms: number of these lines by their form.
    """
    if not bad_lines:
        return None
    advice = _advise_on_form(path, bad_lines, forms)
    # A remedy of a form's own, as that of preferences, says more than the file's columns.
    is_plain = advice.remedy in (_CONVERT_IT, _NAME_COLUMNS) if advice else _begins_with_foreign_row(path)
    if not is_plain or not (info := dataset_info_of(path)):
        return advice
    finding = advice.finding if advice else "has rows with names that Mens does not know"
    remedy = (
        f"{info} describes its columns: `{CONVERT} --dataset-info {shlex.quote(str(info))}` writes rows for training "
        "and accounts for each that it leaves out."
    )
    return Advice(finding, remedy)


def advise_on_folder(path: Path) -> Advice:
    """Return advice on a folder that was named in place of a training file."""
    names, files = _splits_of(path), _files_in(path)
    columnar = [file for file in files if file.suffix in _COLUMNAR]
    if names or (path / SAVED).is_file():
        finding = "is a folder that `datasets` has saved"
    elif columnar:
        finding = f"is a folder of {' and '.join(sorted({_COLUMNAR[file.suffix] for file in columnar}))} files"
        names = splits_by_name(columnar)
    elif rows := [file for file in files if file.suffix in _ROW_FILES and file.name not in _METADATA]:
        named = _quoted([str(file.relative_to(path)) for file in rows])
        return Advice(f"is a folder that contains {named}", "Name one file of it.")
    else:
        return Advice(
            "is a folder, and none of the forms that Mens knows",
            "Name a JSONL file. A folder that `datasets` has saved (save_to_disk), or one with Parquet or Arrow files, "
            f"is converted first: `{CONVERT}`.",
        )
    if len(names) < 2:
        return Advice(finding, _CONVERT_IT)
    split = "train" if "train" in names else names[0]
    remedy = _CONVERT_IT.replace(CONVERT, f"{CONVERT} --split {shlex.quote(split)}")
    return Advice(f"{finding}, with {list_names('split', names)}", remedy)


def splits_by_name(files: Sequence[Path]) -> list[str]:
    """Return the splits that the names of Parquet or Arrow files begin with, as in ``train-00000-of-00001.parquet``."""
    return sorted({file.name.partition("-")[0] for file in files if "-" in file.name})


def dataset_info_of(path: Path) -> Path | None:
    """Return LLaMA-Factory's description next to a file if it has an entry for the file; else None."""
    info = path.parent / DATASET_INFO
    if not info.is_file() or info.stat().st_size > _MAX_INFO_BYTES:
        return None
    entries = _decoded(info.read_bytes())
    if not isinstance(entries, dict):
        return None
    for name, entry in entries.items():
        file_name = entry.get("file_name") if isinstance(entry, dict) else None
        names_file = isinstance(file_name, str) and Path(file_name).name == path.name
        if names_file or (isinstance(entry, dict) and name == path.stem):
            return info
    return None


def _begins_with_foreign_row(path: Path) -> bool:
    """Return whether the first line is an object in a form that the reader does not accept."""
    with path.open("rb") as file:
        row = _decoded(next((line for line in file.read(HEAD_BYTES).splitlines() if line.strip()), b""))
    return isinstance(row, dict) and (recognise(row) is None or is_foreign(row) is not None)


def _splits_of(path: Path) -> list[str]:
    """Return the splits of a folder that ``datasets`` has saved; none if it is not one with splits."""
    index = path / SAVED_SPLITS
    listed = _decoded(index.read_bytes()) if index.is_file() else None
    names = listed.get("splits") if isinstance(listed, dict) else None
    return [name for name in names if isinstance(name, str) and name.isprintable()] if isinstance(names, list) else []


def _files_in(path: Path) -> list[Path]:
    """Return the files of a folder and of the two levels below it, in order, without hidden ones."""
    return sorted(_walk(path, _FOLDER_DEPTH))


def _walk(path: Path, depth: int) -> Iterator[Path]:
    for entry in path.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield entry
        elif depth > 1 and entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry, depth - 1)


def _advise_on_form(path: Path, bad_lines: int, forms: Mapping[str, int]) -> Advice | None:
    file_form = recognise_file(path)
    if file_form is not FileForm.JSON_LINES:
        key = wrapper_in(path) if file_form is FileForm.JSON_WRAPPED else ""
        finding = HINTS[file_form] + (f": the rows are in its list `{key}`" if key else "")
        return Advice(finding, REMEDIES.get(file_form, _CONVERT_IT))
    name, rows = max(forms.items(), key=lambda item: item[1], default=("", 0))
    if rows < max(1, COMMON * bad_lines):
        return _advise_on_names(path) if not forms else None
    form = RowForm(name)
    return Advice(f"has {rows} row{'s' * (rows != 1)} in {DESCRIPTIONS[form]}", _REMEDIES.get(form, _CONVERT_IT))


def _advise_on_names(path: Path) -> Advice | None:
    """Return advice on a file whose columns or keys have names that Mens does not know; None if it is not such a file."""
    with path.open("rb") as file:
        lines = [line for line in file.read(HEAD_BYTES).splitlines()[:2] if line.strip()]
    if lines and (delimiter := TABLE_DELIMITERS.get(path.suffix.lower())) and not lines[0].lstrip().startswith(b"{"):
        header = lines[0].removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
        columns = [name.strip().strip('"') for name in header.split(delimiter)]
        return Advice(f"is a table with {list_names('column', columns)}", _NAME_COLUMNS) if len(columns) > 1 else None
    rows = [row for line in lines if isinstance(row := _decoded(line), dict)]
    if len(rows) < len(lines) or not rows or rows[0].keys() != rows[-1].keys() or len(rows[0]) < 2:
        return None
    # A misspelt key and a row inside of a row are named with their line.
    if any(isinstance(value, dict) for value in rows[0].values()) or any(
        get_close_matches(key.lower(), _OWN_KEYS, cutoff=0.7) for key in rows[0]
    ):
        return None
    return Advice(f"has rows with {list_names('key', list(rows[0]))}, which Mens does not know", _NAME_COLUMNS)


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def list_names(kind: str, names: Sequence[str]) -> str:
    """Format names for a message, as the end of a sentence."""
    return f"the {kind}{'s' * (len(names) != 1)} {_quoted(names)}"


def _quoted(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names if name.isprintable() and len(name) <= _SHOWN_CHARACTERS][:_SHOWN_KEYS]
    return f"{', '.join(shown)}{', …' * (len(shown) < len(names))}"
