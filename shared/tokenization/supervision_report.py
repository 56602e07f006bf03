"""Types of the supervision report, and the refusal of files because of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from shared.errors import Code, DatasetInvalid
from shared.tokenization.assistant_spans import Method

SHOWN_LINES = 5


class SupervisionPart(BaseModel):
    model_config = ConfigDict(frozen=True)


class LineNote(SupervisionPart):
    """A note on one line."""

    line: int
    reason: str


class LineNotes(SupervisionPart):
    """Notes on lines: ``count`` is exact, ``first`` is capped."""

    count: int = 0
    first: list[LineNote] = []

    @property
    def lines(self) -> str:
        """Line numbers of the first lines, for a message."""
        shown = ", ".join(str(note.line) for note in self.first[:SHOWN_LINES])
        return f"line{'s' * (self.count > 1)} {shown}{' …' * (self.count > SHOWN_LINES)}"


class RowSupervision(SupervisionPart):
    """One row: its tokens after truncation, those that carry loss, and whether an answer's end token is supervised."""

    line: int
    tokens: int
    supervised: int
    end_learnt: bool
    truncated: int


class Bucket(SupervisionPart):
    """Rows with at most ``up_to`` tokens (a power of two, or 0) and more than the limit of the previous bucket."""

    up_to: int
    rows: int


class Piece(SupervisionPart):
    """A piece of a chat, and whether it is supervised."""

    text: str
    learnt: bool


class SupervisionReport(SupervisionPart):
    """The tokens of a file that a base model would be trained on.

    Attributes:
        lines: lines of the file.
        rows: rows examined; ``sampled`` says that these are a random sample and not the whole file.
        filtered_rows: rows left out by their rating.
        tokens, supervised_tokens, truncated_tokens: sums over the rows; tokens and supervised_tokens are counted after
            truncation.
        truncation_fraction: truncated tokens per token before truncation.
        longest_row: tokens of the longest row before truncation, among the rows examined and the largest of the others.
        method: how answers were found; offsets if any row needed them.
        end_token: the token that the template writes after an answer.
        end_token_note: note if the base's config files do not name it (`shared/tokenization/end_tokens.py`).
        row_table: the first rows.
        cut: the rows that are longer than the limit.
        nothing_supervised, unsupported, without_embedding: rows for which the file is refused, or which are skipped.
        tools_unsupported: number of unsupported rows with tools, which the base's template does not know.
        lost_difficulties: difficulties of these rows, as a curriculum counts them.
        end_not_learnt: rows whose end token is not supervised: they do not teach the model to stop.
        last_turn_only: rows whose last answer alone can be supervised, because of the template.
        prompt_differs: rows whose prompt at serving time differs from the beginning of their answer's turn in training.
        developer_as_system: rows with a developer's turn that the template writes as the system's.
        thoughts_left_out, names_left_out: rows with an answer's thoughts, or a name, that the template does not write.
        sample: one row in pieces, for display in colours.
        template_arguments: names of the arguments that the base's chat template knows.
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
    longest_row: int
    method: Method
    end_token: str | None
    template_digest: str
    row_table: list[RowSupervision]
    token_histogram: list[Bucket]
    supervised_histogram: list[Bucket]
    cut: LineNotes
    nothing_supervised: LineNotes
    unsupported: LineNotes
    tools_unsupported: int = 0
    without_embedding: LineNotes = LineNotes()
    lost_difficulties: dict[int, int] = {}
    end_not_learnt: LineNotes
    last_turn_only: LineNotes
    prompt_differs: LineNotes
    developer_as_system: LineNotes
    thoughts_left_out: LineNotes
    names_left_out: LineNotes
    sample: list[Piece]
    end_token_note: str | None = None
    template_arguments: list[str] = []

    @property
    def known_arguments(self) -> str:
        """A note, in brackets, that the template's arguments may matter here; empty if it has none."""
        names = ", ".join(self.template_arguments)
        return f" (the template's arguments may decide it, see data.template_arguments: {names})" if names else ""

    def warnings(self, seq_len: int, kind: str = "") -> list[str]:
        """Warn of row contents that the training will not reproduce, one sentence each, with the first lines.

        Args:
            seq_len: length at which rows are truncated.
            kind: the file's kind, if it is not the training file: ``"validation "``.
        """
        findings = (
            (self.unsupported, "cannot be written with the base's chat template and are skipped"),
            (self.without_embedding, "have tokens that the base's embedding has no row for and are skipped"),
            (self.nothing_supervised, "would teach the base nothing and are skipped"),
            (self.end_not_learnt, "do not teach the base where to stop"),
            (self.last_turn_only, "are trained on in their last answer only, because the base's template rewrites earlier ones"),
            (self.prompt_differs, f"have another prompt when served than in training{self.known_arguments}"),
            (self.developer_as_system, "have a developer's turn, which the base's template knows as the system's"),
            (self.thoughts_left_out, "lose thoughts of their answers, which the base's template does not write"),
            (self.names_left_out, "lose the names of their speakers, which the base's template does not write"),
        )  # fmt: skip
        sentences = [
            f"{notes.count} {kind}rows {finding}: {notes.lines}." for notes, finding in findings if notes.count
        ]
        if self.truncated_rows:
            sentences.append(
                f"{self.truncated_rows} of {self.rows} {kind}rows are longer than exec.seq_len ({seq_len} tokens): "
                "their"
                f" beginning is cut off, in {self.cut.lines}. Raise exec.seq_len to keep it."
            )
        return sentences

    def is_refused(self, *, lenient: bool = False) -> bool:
        """Return whether a row cannot be trained on; with ``lenient``, whether none can."""
        return self.lost >= max(1, self.rows) if lenient else self.lost > 0

    @property
    def lost(self) -> int:
        """Number of rows that cannot be trained on."""
        return self.unsupported.count + self.without_embedding.count + self.nothing_supervised.count

    def refuse(self, param: str = "data.train_file", *, lenient: bool = False) -> None:
        """Refuse the file if one of its rows cannot be trained on; in lenient mode, if none can.

        Args:
            param: the field that names the file, for the error.

        Raises:
            DatasetInvalid: ``TEMPLATE_UNSUPPORTED``, ``EMBEDDING_ROW_MISSING`` or ``NOTHING_SUPERVISED``, with line
                numbers.
        """
        if not self.is_refused(lenient=lenient):
            return
        for code, notes, finding, advice in (
            (
                Code.TEMPLATE_UNSUPPORTED,
                self.unsupported,
                "cannot be written with the base's chat template",
                "use a base whose template writes them",
            ),
            (
                Code.EMBEDDING_ROW_MISSING,
                self.without_embedding,
                "have tokens that the base's embedding has no row for",
                "resize the base's embedding to its tokenizer and add the base again",
            ),
            (
                Code.NOTHING_SUPERVISED,
                self.nothing_supervised,
                "would teach the base nothing",
                "raise exec.seq_len where the reason says so",
            ),
        ):
            if not notes.count:
                continue
            first = notes.first[0]
            raise DatasetInvalid(
                code,
                f"{notes.count} of the file's rows {finding}; the first is line {first.line}: {first.reason}",
                remedy=self._remedy(advice),
                param=param,
                details={"count": notes.count, "lines": [note.model_dump() for note in notes.first]},
            )

    def _remedy(self, advice: str) -> str:
        """Return a remedy for rows that cannot be trained on; skipping them is offered only if other rows would be
        left.
        """
        if self.tools_unsupported and self.tools_unsupported == self.unsupported.count:
            return (
                "This base's chat template does not know tools: choose another base, or write the calls into the "
                "content."
            )
        if self.is_refused(lenient=True):
            return f"No row is left to train on: choose another base, change the rows, or {advice}."
        return f"Fix or remove the lines in details.lines, skip them (data.mode lenient), or {advice}."
