"""Counts and notes for a supervision report: their size is constant, except for the lines of lost rows."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.contract.epochs import DEFAULT_DIFFICULTY
from shared.datasets.reader import TrainingRow
from shared.tokenization.assistant_spans import Method
from shared.tokenization.end_tokens import end_token_note
from shared.tokenization.labels import IGNORED, LabelledChat, LabelledRow
from shared.tokenization.supervision_report import Bucket, LineNote, LineNotes, Piece, RowSupervision, SupervisionReport
from shared.tokenization.tokenizer import Tokenizer

MAX_LISTED = 20
MAX_SAMPLE_PIECES = 200
NOTES = {
    "unsupported": "unsupported",
    "without_embedding": "without_embedding",
    "nothing_supervised": "nothing",
    "end_not_learnt": "no_end",
} | {name: name for name in (
    "cut", "last_turn_only", "prompt_differs", "developer_as_system", "thoughts_left_out", "names_left_out",
)}  # fmt: skip
"""Notes by their names in the report; for the first three, a row cannot be trained on."""


@dataclass(slots=True)
class Notes:
    count: int = 0
    first: list[LineNote] = field(default_factory=list)

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(LineNote(line=line, reason=reason))

    def notes(self) -> LineNotes:
        return LineNotes(count=self.count, first=self.first)


@dataclass(slots=True)
class SupervisionCounts:
    """Counts and notes of the rows so far.

    Attributes:
        tools_unsupported: rows with tools that cannot be written, because the template does not know tools.
        lost: rows that cannot be trained on, by difficulty.
        lost_lines: lines of all these rows, which affect the choice of held-out rows.
    """

    seq_len: int
    last_k: int
    rows: int = 0
    filtered_rows: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated: int = 0
    truncated_rows: int = 0
    longest: int = 0
    methods: set[Method] = field(default_factory=set)
    row_table: list[RowSupervision] = field(default_factory=list)
    token_sizes: Counter[int] = field(default_factory=Counter)
    supervised_sizes: Counter[int] = field(default_factory=Counter)
    nothing: Notes = field(default_factory=Notes)
    unsupported: Notes = field(default_factory=Notes)
    tools_unsupported: int = 0
    without_embedding: Notes = field(default_factory=Notes)
    lost: Counter[int] = field(default_factory=Counter)
    lost_lines: array[int] = field(default_factory=lambda: array("I"))
    no_end: Notes = field(default_factory=Notes)
    last_turn_only: Notes = field(default_factory=Notes)
    prompt_differs: Notes = field(default_factory=Notes)
    cut: Notes = field(default_factory=Notes)
    developer_as_system: Notes = field(default_factory=Notes)
    thoughts_left_out: Notes = field(default_factory=Notes)
    names_left_out: Notes = field(default_factory=Notes)
    sample: list[Piece] = field(default_factory=list)

    @property
    def notes(self) -> dict[str, Notes]:
        """Return the notes with a count above zero, by their names in the report."""
        return {name: notes for name, attribute in NOTES.items() if (notes := getattr(self, attribute)).count}

    def refuse(self, row: TrainingRow, reason: str, *, knows_tools: bool) -> None:
        """Count a row that cannot be written with the template.

        Args:
            knows_tools: whether the template knows tools.
        """
        self.rows += 1
        has_tools = bool(row.tools) or any(turn.tool_calls or turn.role == "tool" for turn in row.messages)
        self.tools_unsupported += has_tools and not knows_tools
        self.unsupported.add(row.line, reason)
        self._lose(row)

    def add(self, labelled: LabelledChat, row: TrainingRow, tokenizer: Tokenizer) -> None:
        """Count a row and its supervised tokens."""
        example = labelled.example(self.seq_len, self.last_k)
        supervised = example.targets
        self.rows += 1
        self.tokens += len(example.ids)
        self.supervised += supervised
        self.truncated += example.truncated
        self.truncated_rows += example.truncated > 0
        self.longest = max(self.longest, len(labelled.ids))
        self.methods.add(labelled.chat.method)
        self.token_sizes[_bucket(len(example.ids))] += 1
        self.supervised_sizes[_bucket(supervised)] += 1
        missing = _missing_end(labelled, example, tokenizer)
        chat = labelled.chat
        # In the trainer's order, which leaves out a row for the first matching reason
        # (worker/training/data/prepare.py).
        unknown = (
            {id_ for id_ in example.ids if id_ in tokenizer.tokens_without_embedding} if len(example.ids) > 1 else ()
        )
        if unknown:
            self.without_embedding.add(chat.line, _unknown_tokens(tokenizer, min(unknown)))
            self._lose(row)
        elif not supervised:
            self.nothing.add(chat.line, f"no assistant token to learn is within {self.seq_len} tokens")
            self._lose(row)
        elif missing:
            self.no_end.add(chat.line, missing)
        for notes, holds, reason in (
            (self.cut, example.truncated, f"{example.truncated} tokens are cut off at the beginning"),
            (self.last_turn_only, chat.last_turn_only, "the template writes earlier answers differently from the last"),
            (self.prompt_differs, chat.prompt_differs, "the answer's turn does not begin with the generation prompt"),
            (self.developer_as_system, chat.developer_as_system, "the template does not know the role developer"),
            (self.thoughts_left_out, "thoughts" in chat.left_out, "the template leaves out thoughts of an answer"),
            (self.names_left_out, "names" in chat.left_out, "the template leaves out names"),
        ):
            if holds:
                notes.add(chat.line, reason)
        if len(self.row_table) < MAX_LISTED:
            self.row_table.append(
                RowSupervision(
                    line=example.line,
                    tokens=len(example.ids),
                    supervised=supervised,
                    end_learnt=supervised > 0 and not missing,
                    truncated=example.truncated,
                )
            )
        if supervised and not self.sample:
            pieces = text_pieces(labelled, example)[:MAX_SAMPLE_PIECES]
            self.sample = [Piece(text=text, learnt=learnt) for text, learnt in pieces]

    def add_preference(self, sides: Sequence[LabelledChat], row: TrainingRow, tokenizer: Tokenizer) -> None:
        """Count an answer to a prompt, or a pair of answers that are truncated by the same number of tokens."""
        longest = max(len(side.ids) for side in sides)
        cut = max(0, longest - self.seq_len)
        examples = [side.example(max(1, len(side.ids) - cut)) for side in sides]
        supervised, tokens = sum(example.targets for example in examples), sum(len(example.ids) for example in examples)
        self.rows += 1
        self.tokens += tokens
        self.supervised += supervised
        self.truncated += cut * len(sides)
        self.truncated_rows += cut > 0
        self.longest = max(self.longest, longest)
        self.methods |= {side.chat.method for side in sides}
        self.token_sizes[_bucket(tokens)] += 1
        self.supervised_sizes[_bucket(supervised)] += 1
        missing = next(filter(None, map(_missing_end, sides, examples, [tokenizer] * len(sides))), "")
        chat, missing_embeddings = sides[0].chat, tokenizer.tokens_without_embedding
        if unknown := {id_ for example in examples for id_ in example.ids if id_ in missing_embeddings}:
            self.without_embedding.add(chat.line, _unknown_tokens(tokenizer, min(unknown)))
            self._lose(row)
        elif reason := preference_fault(sides, cut, self.seq_len):
            self.nothing.add(chat.line, reason)
            self._lose(row)
        elif missing:
            self.no_end.add(chat.line, missing)
        for notes, holds, reason in (
            (self.cut, cut, f"{cut} tokens are cut off at the beginning of the prompt"),
            (self.prompt_differs, chat.prompt_differs, "the answer's turn does not begin with the generation prompt"),
            (self.developer_as_system, chat.developer_as_system, "the template does not know the role developer"),
            (self.thoughts_left_out, "thoughts" in chat.left_out, "the template leaves out thoughts of an answer"),
            (self.names_left_out, "names" in chat.left_out, "the template leaves out names"),
        ):
            if holds:
                notes.add(chat.line, reason)
        if len(self.row_table) < MAX_LISTED:
            learnt = supervised > 0 and not missing
            self.row_table.append(
                RowSupervision(
                    line=chat.line, tokens=tokens, supervised=supervised, end_learnt=learnt, truncated=cut * len(sides)
                )
            )
        if supervised and not self.sample:
            pieces = text_pieces(sides[0], examples[0])[:MAX_SAMPLE_PIECES]
            self.sample = [Piece(text=text, learnt=learnt) for text, learnt in pieces]

    def _lose(self, row: TrainingRow) -> None:
        self.lost[row.difficulty or DEFAULT_DIFFICULTY] += 1
        self.lost_lines.append(row.line)

    def report(self, tokenizer: Tokenizer, lines: int, sampled: bool) -> SupervisionReport:
        return SupervisionReport(
            lines=lines,
            rows=self.rows,
            sampled=sampled,
            filtered_rows=self.filtered_rows,
            tokens=self.tokens,
            supervised_tokens=self.supervised,
            truncated_tokens=self.truncated,
            truncated_rows=self.truncated_rows,
            truncation_fraction=self.truncated / max(1, self.tokens + self.truncated),
            longest_row=self.longest,
            method="offsets" if "offsets" in self.methods or not tokenizer.template.has_marks else "marks",
            end_token=tokenizer.end_token,
            template_digest=tokenizer.template_digest,
            row_table=self.row_table,
            token_histogram=_histogram(self.token_sizes),
            supervised_histogram=_histogram(self.supervised_sizes),
            cut=self.cut.notes(),
            nothing_supervised=self.nothing.notes(),
            unsupported=self.unsupported.notes(),
            tools_unsupported=self.tools_unsupported,
            without_embedding=self.without_embedding.notes(),
            lost_difficulties=dict(sorted(self.lost.items())),
            end_not_learnt=self.no_end.notes(),
            last_turn_only=self.last_turn_only.notes(),
            prompt_differs=self.prompt_differs.notes(),
            developer_as_system=self.developer_as_system.notes(),
            thoughts_left_out=self.thoughts_left_out.notes(),
            names_left_out=self.names_left_out.notes(),
            sample=self.sample,
            end_token_note=end_token_note(tokenizer),
            template_arguments=tokenizer.argument_names,
        )


def preference_fault(sides: Sequence[LabelledChat], cut: int, seq_len: int) -> str:
    """Return why answers that lose ``cut`` tokens cannot be trained on; empty if they can."""
    if len(sides) > 1 and sides[0].ids == sides[1].ids:
        return "both answers have the same tokens"
    for side in sides:
        if True not in side.supervised:
            return "an answer has no token to learn"
        if cut >= side.supervised.index(True):
            return f"an answer leaves no room for its prompt within {seq_len} tokens"
    return ""


def text_pieces(labelled: LabelledChat, example: LabelledRow) -> list[tuple[str, bool]]:
    """Split the kept text of a row into pieces, each with whether it is supervised."""
    flags = [label != IGNORED for label in example.labels]
    starts = [start for start, _ in labelled.offsets[-len(flags) :]]
    borders = [index for index, flag in enumerate(flags) if not index or flag != flags[index - 1]]
    return [
        (labelled.chat.text[starts[first] : None if after is None else starts[after]], flags[first])
        for first, after in itertools.zip_longest(borders, borders[1:])
    ]


def _missing_end(labelled: LabelledChat, example: LabelledRow, tokenizer: Tokenizer) -> str:
    """Return why the end token of a supervised answer is not a label; empty if it is one."""
    # Tokens are cut off at the beginning only, so an answer that is supervised at all keeps its end.
    flags = [label != IGNORED for label in example.labels]
    ends = [i for i, flag in enumerate(flags) if flag and not (i + 1 < len(flags) and flags[i + 1])]
    for end in ends:
        if example.ids[end] not in tokenizer.end_ids:
            after = labelled.chat.text[labelled.offsets[end - len(flags)][1] :][:20]
            if not after:
                return "the template writes no end token after the answer"
            return f"after the answer the template writes {after!r}, not an end token"
    return ""


def _unknown_tokens(tokenizer: Tokenizer, first: int) -> str:
    """Return why a row with such a token cannot be trained on."""
    token = tokenizer.tokens_without_embedding[first]
    return f"its token {token!r} has the id {first}, and the base's embedding has {tokenizer.embedding_rows} rows"


def _bucket(size: int) -> int:
    """Return the smallest power of two that is at least the number; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _histogram(sizes: Counter[int]) -> list[Bucket]:
    return [Bucket(up_to=size, rows=rows) for size, rows in sorted(sizes.items())]
