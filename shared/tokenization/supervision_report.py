"""What a supervision report says: the shapes, JSON-able, and when a file is refused for it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from shared.answers import Method
from shared.errors import Code, DatasetInvalid


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class LineNote(_Frozen):
    """What is to be said about one line."""

    line: int
    reason: str


class LineNotes(_Frozen):
    """Notes on lines: ``count`` is exact, ``first`` is capped."""

    count: int = 0
    first: list[LineNote] = []


class RowSupervision(_Frozen):
    """One row: its tokens after truncation, those that carry loss, and whether a learnt turn's end token is learnt."""

    line: int
    tokens: int
    supervised: int
    end_learnt: bool
    truncated: int


class Bucket(_Frozen):
    """Rows with at most ``up_to`` tokens (a power of two, or 0) and more than the bucket before has."""

    up_to: int
    rows: int


class Piece(_Frozen):
    """Text, and whether it is learnt."""

    text: str
    learnt: bool


class SupervisionReport(_Frozen):
    """What a base would learn from a file.

    Attributes:
        lines: lines of the file.
        rows: rows looked at; ``sampled`` says that these are a random sample and not the whole file.
        filtered_rows: rows left out by their rating.
        tokens, supervised_tokens, truncated_tokens: sums over the rows; tokens and supervised_tokens are counted after
            truncation.
        truncation_fraction: truncated tokens per token before truncation.
        method: how answers were found; offsets if they were for any row.
        end_token: what the template writes after an answer.
        row_table: the first rows.
        nothing_supervised, unsupported: rows for which the file is refused.
        end_not_learnt: rows after which the model would not know where to stop.
        last_turn_only: rows of which the template lets only the last answer be learnt.
        prompt_differs: rows whose prompt at serving time is not how their answer's turn begins in training.
        sample: one row in pieces, to be shown in colours.
    """

    lines: int
    rows: int
    sampled: bool
    filtered_rows: int
    tokens: int
    supervised_tokens: int
    truncated_tokens: int
    truncated_rows: int
    truncation_fraction: float
    method: Method
    end_token: str | None
    template_digest: str
    row_table: list[RowSupervision]
    token_histogram: list[Bucket]
    supervised_histogram: list[Bucket]
    nothing_supervised: LineNotes
    unsupported: LineNotes
    end_not_learnt: LineNotes
    last_turn_only: LineNotes
    prompt_differs: LineNotes
    sample: list[Piece]

    def refuse(self, param: str = "data.train_file") -> None:
        """Refuse the file if a row of it cannot be learnt.

        Raises:
            DatasetInvalid: ``TEMPLATE_UNSUPPORTED`` or ``NOTHING_SUPERVISED``, with line numbers.
        """
        for code, notes, what in (
            (Code.TEMPLATE_UNSUPPORTED, self.unsupported, "cannot be written with the base's chat template"),
            (Code.NOTHING_SUPERVISED, self.nothing_supervised, "would teach the base nothing"),
        ):
            if notes.count:
                raise _refusal(code, notes, what, param)


def _refusal(code: Code, notes: LineNotes, what: str, param: str) -> DatasetInvalid:
    first = notes.first[0]
    return DatasetInvalid(
        code,
        f"{notes.count} of the file's rows {what}; the first is line {first.line}: {first.reason}",
        remedy="Mend or remove the lines named in details.lines, or raise exec.seq_len where the reason says so.",
        param=param,
        details={"count": notes.count, "lines": [note.model_dump() for note in notes.first]},
    )
