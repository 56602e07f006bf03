"""Types of the data report that ``report.py`` makes; they are its JSON form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from shared.contract.choices import DataMode
from shared.datasets.rows import RowCode
from shared.datasets.written_rows import Conversion


class ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True)


class LineProblem(ReportPart):
    """One bad line, or a valid one with a warning; ``field`` is empty when it is about the whole line."""

    line: int
    code: RowCode
    field: str
    reason: str


class Lengths(ReportPart):
    """Characters of content per valid row. ``counts[i]`` rows have at most ``bounds[i]``; the last count is of longer
    rows.
    """

    bounds: list[int]
    counts: list[int]
    total: int
    mean: float
    longest: int
    longest_line: int


class LinePair(ReportPart):
    """Two equal or similar lines; for leakage, ``first`` is in the training file, ``second`` in the validation file."""

    first: int
    second: int
    similarity: float


class Repeats(ReportPart):
    """Rows that repeat another row, and the first pairs of them by line."""

    exact_rows: int = 0
    exact_pairs: list[LinePair] = []
    near_rows: int = 0
    near_pairs: list[LinePair] = []


class FormAdvice(ReportPart):
    """The form of a file of another program, as the end of a sentence that begins with the file, and a remedy."""

    finding: str
    remedy: str


class PreferenceReport(ReportPart):
    """The pairs of a file: those that prefer the longer answer, and those that contradict an earlier one."""

    pairs: int
    longer_chosen: int
    contradicting: int


class RatedReport(ReportPart):
    """The rated answers of a file that pass the filter, by label."""

    good: int
    bad: int


class FileReport(ReportPart):
    """One file. ``rows`` are the valid ones; ``trainable_rows`` of them pass the filter.

    ``warnings`` are the first valid rows that are probably mistakes, and ``warnings_by_code`` counts all of them.
    ``difficulties`` counts the valid rows as they are labelled, ``trainable_difficulties`` the trainable ones as a
    curriculum counts them. ``unused_keys`` counts rows by key that is not used (of a turn: ``messages[].key``), and
    ``conversions`` rows by the part that is read in a form that differs from the written one. ``forms`` counts bad
    lines by the form of another program that they are in, and ``advice`` is on the file as a whole. ``preferences`` is
    set for a file of pairs, and ``rated`` for a file of rated answers.
    """

    bytes: int
    rows: int
    trainable_rows: int
    error_count: int
    errors_by_code: dict[str, int]
    errors: list[LineProblem]
    warnings_by_code: dict[RowCode, int] = {}
    warnings: list[LineProblem] = []
    unused_keys: dict[str, int] = {}
    conversions: dict[Conversion, int] = {}
    forms: dict[str, int] = {}
    advice: FormAdvice | None = None
    turns: dict[str, int]
    lengths: Lengths
    ratings: dict[str, int]
    difficulties: dict[str, int]
    trainable_difficulties: dict[int, int] = {}
    categories: dict[str, int]
    lanes: dict[str, int]
    task_families: dict[str, int]
    duplicates: Repeats
    preferences: PreferenceReport | None = None
    rated: RatedReport | None = None


class DataReport(ReportPart):
    """The report on a training file, its validation file if there is one, and the rows that both have.

    ``warnings`` are the notes about what is left out or read in another form.
    """

    mode: DataMode
    training: FileReport
    validation: FileReport | None = None
    leakage: Repeats | None = None
    warnings: list[str] = []
    notes: list[str] = []

    @property
    def usable(self) -> bool:
        """Return true if a job may be started on these files."""
        files = [file for file in (self.training, self.validation) if file]
        broken = self.mode is DataMode.STRICT and any(file.error_count for file in files)
        return not broken and all(file.trainable_rows for file in files)
