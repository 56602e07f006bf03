"""Advice on a file in another program's form: one sentence instead of an error for each line, and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.datasets.forms.files import HINTS, REMEDIES, FileForm, recognise_file, wrapper_in
from shared.datasets.forms.recognition import DESCRIPTIONS, RowForm

CONVERT = "mens data convert FILE -o rows.jsonl"
_CONVERT_IT = f"Convert it: `{CONVERT}` writes rows for training and accounts for each that it leaves out."
_REMEDIES = {
    RowForm.PREFERENCE: "Set method.type to dpo (`--method dpo`) to learn the preferences; "
    f"`{CONVERT} --as-supervised` takes the chosen answers, and `--as-rated` makes a good and a bad answer of each pair, for kto.",
    RowForm.TEXT: f"`{CONVERT}` divides strings with a known chat markup into turns; other strings have no answer to learn.",
    RowForm.KTO: "Set method.type to kto (`--method kto`) to learn from both kinds of answers; "
    f"`{CONVERT}` keeps the rows whose label is true and counts the others.",
}
COMMON = 0.5
"""Share of the bad lines from which on their form counts as the file's."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The form of a file, as the end of a sentence that begins with the file, and a remedy."""

    finding: str
    remedy: str


def advise(path: Path, bad_lines: int, forms: Mapping[str, int]) -> Advice | None:
    """Return advice on a file with bad lines; None if its form is unknown.

    Args:
        bad_lines: how many of its lines are not rows.
        forms: how many of these are in which form of a row.
    """
    file_form = recognise_file(path) if bad_lines else FileForm.JSON_LINES
    if file_form is not FileForm.JSON_LINES:
        key = wrapper_in(path) if file_form is FileForm.JSON_WRAPPED else ""
        finding = HINTS[file_form] + (f": the rows are in its list `{key}`" if key else "")
        return Advice(finding, REMEDIES.get(file_form, _CONVERT_IT))
    name, rows = max(forms.items(), key=lambda item: item[1], default=("", 0))
    if rows < max(1, COMMON * bad_lines):
        return None
    form = RowForm(name)
    return Advice(f"has {rows} row{'s' * (rows != 1)} in {DESCRIPTIONS[form]}", _REMEDIES.get(form, _CONVERT_IT))
