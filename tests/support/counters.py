"""Test doubles that count how often a file is opened, a contract is validated and the refusals are checked."""

from __future__ import annotations

import builtins
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shared.contract import refusals, values
from shared.contract.contracts import FineTuneContract
from shared.errors import Code

ALIAS = "counted"
"""Alias of a contract whose validations are counted: pydantic validates the name once each time.

The job needs a name of its own, because the plan would take the alias for it and check it once more.
"""


class Counts:
    """Counts since the start or since :meth:`reset`."""

    def __init__(self) -> None:
        self.validations = 0
        self.refusal_runs = 0
        self._opened: Counter[str] = Counter()

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def reads(self, path: Path) -> int:
        """Number of times that a file was opened."""
        return self._opened[str(path)]

    def add_open(self, file: Any) -> None:
        self._opened[str(file)] += 1


def counting(patch: pytest.MonkeyPatch) -> Counts:
    """Start counting."""
    counts = Counts()
    real_open, describe = io.open, values.describe_bad_name

    def counted_open(file: Any, *args: Any, **kwargs: Any) -> Any:
        counts.add_open(file)
        return real_open(file, *args, **kwargs)

    def counted_name(text: str) -> str | None:
        counts.validations += text == ALIAS
        return describe(text)

    def counted_refusal(contract: FineTuneContract, context: refusals.RefusalContext) -> bool:
        counts.refusal_runs += 1
        return False

    patch.setattr(io, "open", counted_open)
    patch.setattr(builtins, "open", counted_open)
    patch.setattr(values, "describe_bad_name", counted_name)
    first = refusals.Refusal(Code.GPU_REQUIRED, "device.device", counted_refusal, "", "")
    patch.setattr(refusals, "REFUSALS", (first, *refusals.REFUSALS))
    return counts
