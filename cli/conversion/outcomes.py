"""The outcomes of a row: kept, changed by named rules, or dropped for a named reason; and the user's choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Row = dict[str, Any]


class RowChange(StrEnum):
    """A change made to a row."""

    TEXT_PARTS_JOINED = "text_parts_joined"
    FUNCTIONS_TO_TOOLS = "functions_to_tools"
    FUNCTION_CALL_TO_TOOL_CALL = "function_call_to_tool_call"
    FUNCTION_ROLE_TO_TOOL = "function_role_to_tool"
    WEIGHT_TO_INTEGER = "weight_to_integer"
    WEIGHT_OF_OTHER_ROLE_REMOVED = "weight_of_other_role_removed"
    DEVELOPER_TO_SYSTEM = "developer_to_system"
    REFUSAL_AS_ANSWER = "refusal_as_answer"
    TRAILING_TURNS_CUT = "trailing_turns_cut"
    MARKERS_STRIPPED = "markers_stripped"
    PREFERRED_ANSWER_TAKEN = "preferred_answer_taken"
    SPLIT_INTO_ANSWERS = "split_into_answers"
    REDACTED = "redacted"
    FORM_TO_CHAT = "form_to_chat"
    TEXT_TO_TURNS = "text_to_turns"
    HISTORY_TO_TURNS = "history_to_turns"
    TOOLS_TO_FUNCTIONS = "tools_to_functions"
    NUMBER_TO_TEXT = "number_to_text"
    BEST_AND_WORST_TAKEN = "best_and_worst_taken"
    FORM_TO_PAIR = "form_to_pair"
    RATED_ANSWERS = "rated_answers"
    CONTRADICTING_ANSWER_DROPPED = "contradicting_answer_dropped"
    BYTE_ORDER_MARK_REMOVED = "byte_order_mark_removed"


class DropReason(StrEnum):
    """Reason for dropping a row; a row that Mens' reader refuses is dropped with that reader's code."""

    IMAGE = "image"
    AUDIO = "audio"
    OTHER_PART = "other_part"
    REFUSAL = "refusal"
    FUNCTION_WITHOUT_CALL = "function_without_call"
    NO_ANSWER = "no_answer"
    NOT_A_PREFERENCE = "not_a_preference"
    PREFERENCE = "preference"
    RANKING = "ranking"
    NO_ANSWER_BETTER = "no_answer_better"
    NOT_A_TASK = "not_a_task"
    IN_TRAINING_FILE = "in_training_file"
    SENT_TO_THE_OLD_MODEL = "sent_to_the_old_model"
    ANSWER_CUT = "answer_cut"
    LABEL_FALSE = "label_false"
    TEXT_WITHOUT_TURNS = "text_without_turns"
    FORM_UNKNOWN = "form_unknown"
    NOT_RATED = "not_rated"
    COLUMNS_DIFFER = "columns_differ"


class Dropped(Exception):
    """A row that is not converted, and why: a `DropReason`, or the code of Mens' reader."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Note(StrEnum):
    """Part of a row that is kept although it has another effect here, or none."""

    PARALLEL_TOOL_CALLS = "parallel_tool_calls"
    STRICT_TOOL = "strict_tool"
    NAME_OF_MESSAGE = "name_of_message"
    SEVERAL_ANSWERS = "several_answers"
    REPEATED = "repeated"
    SCHEMA_REFUSED = "schema_refused"


class ConvertedMethod(StrEnum):
    """Training method of a job."""

    SUPERVISED = "supervised"
    DPO = "dpo"
    REINFORCEMENT = "reinforcement"


@dataclass(frozen=True, slots=True)
class Markers:
    """Endings of each prompt and completion in a file of prompt-completion pairs; empty if it has none."""

    separator: str = ""
    stop: str = ""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The user's choices.

    Attributes:
        keep_refusals: a refusal becomes the answer's content; otherwise its row is dropped.
        developer_as_system: for a base whose template has no role `developer`.
        as_supervised: train on the preferred answer of a preference.
        as_rated: write rows for KTO: a rated answer with its label, and a pair as two of them.
        as_pairs: write rows for DPO, in one form.
        split_answers: a chat of several answers becomes a row for each.
        strip: remove these markers.
    """

    keep_refusals: bool = False
    developer_as_system: bool = False
    as_supervised: bool = False
    as_rated: bool = False
    as_pairs: bool = False
    split_answers: bool = False
    strip: Markers | None = None


@dataclass(slots=True)
class RowOutcome:
    """Outcome of a row: dropped if ``reason`` is not empty, changed if ``changes`` is not empty, otherwise kept.

    Attributes:
        schemas: schemas of the row that an installation would not accept, and why.
        unused_keys: keys of the row with a value that no written row contains.
    """

    rows: list[Row] = field(default_factory=list)
    changes: list[RowChange] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    reason: str = ""
    schemas: dict[str, str] = field(default_factory=dict)
    unused_keys: list[str] = field(default_factory=list)

    @property
    def fate(self) -> str:
        """Outcome of the row: ``dropped``, ``changed`` or ``kept``."""
        return "dropped" if self.reason else "changed" if self.changes else "kept"

    def change(self, change: RowChange) -> None:
        if change not in self.changes:
            self.changes.append(change)
