"""The filters of secrets and personal data as parts of a recipe: rows with a secret are left out, personal data is replaced."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from corpus.filters.redactors import PATTERNS, Redactors
from corpus.filters.row_texts import texts_of, with_texts
from corpus.filters.secrets import texts_with_secrets
from corpus.verdicts import RowVerdict, VerdictCode


class SecretFilter:
    """Leaves out rows that hold a secret."""

    name = "secrets"
    version = 1

    def judge(self, rows: Sequence[dict[str, Any]]) -> list[RowVerdict]:
        """Return a verdict for each row; the reason is the rule, such as ``github``."""
        texts = [texts_of(row) for row in rows]
        numbers = [number for number, row_texts in enumerate(texts) for _ in row_texts]
        kinds: dict[int, set[str]] = {}
        for place, rules in texts_with_secrets([text for row_texts in texts for text in row_texts]).items():
            kinds.setdefault(numbers[place], set()).update(rules)
        return [
            RowVerdict(None, VerdictCode.SECRET, reason=", ".join(sorted(kinds[number])))
            if number in kinds
            else RowVerdict(row)
            for number, row in enumerate(rows)
        ]


class PersonalDataFilter:
    """Replaces personal data by placeholders.

    Args:
        redactors: as :class:`Redactors`.
        key: key of the placeholders; None draws one.
        folder: where paths of rules start.

    Raises:
        InvalidRequest: ``CORPUS_REDACTOR_UNKNOWN``.
    """

    name = "personal_data"
    version = 1

    def __init__(self, redactors: Sequence[str] = (PATTERNS,), key: bytes | None = None, folder: Path = Path()) -> None:
        self.redactors = Redactors(redactors, key, folder)

    def judge(self, rows: Sequence[dict[str, Any]]) -> list[RowVerdict]:
        """Return a verdict for each row."""
        texts = [texts_of(row) for row in rows]
        result = self.redactors.redact([text for row_texts in texts for text in row_texts])
        if not result.counts:
            return list(map(RowVerdict, rows))
        begins = list(accumulate(map(len, texts), initial=0))
        counts: dict[int, Counter[str]] = {}
        for place in sorted(result.counts):
            # Rows without texts begin where the next row does; the last of them has the text.
            counts.setdefault(bisect_right(begins, place) - 1, Counter()).update(+result.counts[place])
        verdicts = list(map(RowVerdict, rows))
        for number, kinds in counts.items():
            if kinds:
                redacted = with_texts(rows[number], iter(result.texts[begins[number] : begins[number + 1]]))
                verdicts[number] = RowVerdict(redacted, VerdictCode.PERSONAL_DATA, dict(kinds))
        return verdicts
