"""The training method of a contract."""

from __future__ import annotations

from typing import Any

from shared.contract.contracts import FineTuneContract
from worker.training.method import Method
from worker.training.preference.direct import DirectPreference
from worker.training.supervised import SupervisedMethod


def method_of(contract: FineTuneContract) -> Method[Any, Any]:
    """Return the training method that a contract names."""
    return DirectPreference(contract.preference) if contract.has_pairs else SupervisedMethod()
