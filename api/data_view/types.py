"""Wire forms: rows as a base would be trained on them, and the report on a file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.contract.choices import MethodType
from shared.datasets.report_types import FileReport, LineProblem
from shared.tokenization.assistant_spans import Method
from shared.tokenization.supervision_report import LineNote, SupervisionReport

Only = Literal["all", "errors", "cut", "notes"]
PieceKind = Literal["special", "context", "supervised", "end", "cut", "omitted"]


class DataPiece(BaseModel):
    """Neighbouring tokens of one kind, with their text."""

    kind: PieceKind = Field(
        description="`supervised`: trained on; `end`: a supervised token that ends the answer; `special`: another token of the template; `context`: "
        "any other text; `cut`: cut off, because the row is too long; `omitted`: left out of this answer, because the row has too many tokens."
    )
    text: str
    ids: list[int] = Field(description="Ids of the tokens; empty if they are omitted.")


class TrainedText(BaseModel):
    """A chat as the base's template writes it, in tokens."""

    tokens: int = Field(description="After truncation.")
    supervised_tokens: int
    truncated_tokens: int
    method: Method = Field(description="How the answers were found: by marks of the template or by offsets.")
    pieces: list[DataPiece]


class RowNote(BaseModel):
    """A note on a row, named as in the file's report."""

    name: str
    reason: str


class DataRow(BaseModel):
    """One line of a file."""

    line: int
    bytes: int
    text: str = Field(description="The line, unchanged except that bytes that are not UTF-8 are replaced.")
    text_is_cut: bool = Field(description="The line is longer than its `text`.")
    error: LineProblem | None = Field(description="Fault of a line that is not a row.")
    trainable: bool = Field(description="True if it can be trained on; without `base_model`, if it is a row.")
    notes: list[RowNote] = []
    trained: TrainedText | None = Field(
        None,
        description="With `base_model`: the row's chat (for a pair, with the preferred answer). Null if it cannot be rendered.",
    )
    rejected: TrainedText | None = Field(None, description="The other answer of a pair.")


class RowsRead(BaseModel):
    """A page as the contained process returns it."""

    seq_len: int | None
    method: MethodType
    data: list[DataRow]
    has_more: bool
    next_after: int


class DataRows(RowsRead):
    """One page of a file's rows."""

    model_config = ConfigDict(
        json_schema_extra={"description": "One page of a file's rows; the next one begins after `next_after`."}
    )

    object: Literal["list"] = "list"
    file_id: str
    base_model: str | None
    seq_len: int | None = Field(description="Length at which rows are truncated, in tokens; null without `base_model`.")
    method: MethodType = Field(description="Training method for which the lines are read.")
    next_after: int = Field(
        description="Last line that was read. A page may be short or empty although more follows, because reading takes two seconds at most."
    )


class JobRefusal(BaseModel):
    """The error with which a job on the file would be refused."""

    code: str
    message: str
    remedy: str
    lines: list[LineNote] = []


class ReportMade(BaseModel):
    """A report as the contained process returns it."""

    seq_len: int | None
    method: MethodType
    data: FileReport
    notes: list[str]
    supervision: SupervisionReport | None
    refusal: JobRefusal | None


class DataFileReport(ReportMade):
    """The report on a whole file."""

    object: Literal["file.report"] = "file.report"
    file_id: str
    base_model: str | None
    seq_len: int | None = Field(description="Length at which rows are truncated, in tokens; null without `base_model`.")
    data: FileReport = Field(description="Lines, bad lines, lengths, duplicates: as `mens data check` finds them.")
    supervision: SupervisionReport | None = Field(
        description="Tokens that the base would be trained on; for a large file, in a sample of it. Null without `base_model`."
    )
    refusal: JobRefusal | None = Field(
        description="Why a job with the defaults would be refused; null if it would not."
    )


class ReportPending(BaseModel):
    """The report is being made; ask again."""

    object: Literal["file.report.pending"] = "file.report.pending"
    file_id: str
