"""Method ``back_translate``: writes the instruction for an existing text, so that the row's answer is written by a
person.
"""

from __future__ import annotations

from corpus.generation.asking import RowDropped
from corpus.generation.methods.judge import judgement
from corpus.generation.methods.method import RowRequests
from corpus.generation.model_columns import BackTranslateColumn
from corpus.verdicts import VerdictCode

ASK = (
    "Write the instruction that a person would give to get the text below as the answer. It must say everything that "
    "the text "
    "needs to be the right answer, and must not quote the text. Reply with the instruction alone.\n\nText:\n\n{text}"
)
JUDGE = (
    "Is the answer below a complete and correct answer to the instruction, so that it can stay as it is?\n\n"
    "Instruction:\n\n{instruction}\n\nAnswer:\n\n{text}"
)
_LABELS: dict[str, object] = {"type": "string", "enum": ["yes", "no"]}


def back_translate(column: BackTranslateColumn, row: RowRequests) -> str:
    """Return the instruction, if the model then judges that the text answers it.

    Raises:
        RowDropped: ``JUDGED_BAD``: the text does not answer it.
    """
    text = row.fill(column.text)
    instruction = row.ask(column, ASK.format(text=text))
    if judgement(column, row, JUDGE.format(instruction=instruction, text=text), _LABELS) != "yes":
        raise RowDropped(VerdictCode.JUDGED_BAD)
    return instruction
