"""Advice on a file in another program's form: one sentence instead of an error for each line, and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from shared.datasets.forms.files import HEAD_BYTES, HINTS, REMEDIES, FileForm, recognise_file, wrapper_in
from shared.datasets.forms.recognition import DESCRIPTIONS, RowForm

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
    "for training."
)
_OWN_KEYS = ("messages", "turns", "prompt", "response")
_SHOWN_KEYS, _SHOWN_CHARACTERS = 6, 40
_TABLE_DELIMITERS = {".csv": ",", ".tsv": "\t"}
COMMON = 0.5
"""Minimum share of the bad lines for their form to count as the file's form."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The form of a file, as the end of a sentence that begins with the file, and a remedy."""

    finding: str
    remedy: str


def advise(path: Path, bad_lines: int, forms: Mapping[str, int]) -> Advice | None:
    """Return advice on a file with bad lines; None if its form is unknown.

    Args:
        bad_lines: number of its lines that are not rows.
        forms: number of these lines by their form.
    """
    file_form = recognise_file(path) if bad_lines else FileForm.JSON_LINES
    if file_form is not FileForm.JSON_LINES:
        key = wrapper_in(path) if file_form is FileForm.JSON_WRAPPED else ""
        finding = HINTS[file_form] + (f": the rows are in its list `{key}`" if key else "")
        return Advice(finding, REMEDIES.get(file_form, _CONVERT_IT))
    name, rows = max(forms.items(), key=lambda item: item[1], default=("", 0))
    if rows < max(1, COMMON * bad_lines):
        return _advise_on_names(path) if bad_lines and not forms else None
    form = RowForm(name)
    return Advice(f"has {rows} row{'s' * (rows != 1)} in {DESCRIPTIONS[form]}", _REMEDIES.get(form, _CONVERT_IT))


def _advise_on_names(path: Path) -> Advice | None:
    """Return advice on a file whose columns or keys have names that Mens does not know; None if it is not such a file."""
    with path.open("rb") as file:
        lines = [line for line in file.read(HEAD_BYTES).splitlines()[:2] if line.strip()]
    if lines and (delimiter := _TABLE_DELIMITERS.get(path.suffix.lower())) and not lines[0].lstrip().startswith(b"{"):
        header = lines[0].removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
        columns = [name.strip().strip('"') for name in header.split(delimiter)]
        return Advice(f"is a table with {_listed('column', columns)}", _NAME_COLUMNS) if len(columns) > 1 else None
    rows = [row for line in lines if isinstance(row := _decoded(line), dict)]
    if len(rows) < len(lines) or not rows or rows[0].keys() != rows[-1].keys() or len(rows[0]) < 2:
        return None
    # A misspelt key and a row inside of a row are named with their line.
    if any(isinstance(value, dict) for value in rows[0].values()) or any(
        get_close_matches(key.lower(), _OWN_KEYS, cutoff=0.7) for key in rows[0]
    ):
        return None
    return Advice(f"has rows with {_listed('key', list(rows[0]))}, which Mens does not know", _NAME_COLUMNS)


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _listed(kind: str, names: Sequence[str]) -> str:
    """Format names for a message, as the end of a sentence."""
    shown = [f"`{name}`" for name in names if name.isprintable() and len(name) <= _SHOWN_CHARACTERS][:_SHOWN_KEYS]
    return f"the {kind}s {', '.join(shown)}{', …' * (len(shown) < len(names))}"
