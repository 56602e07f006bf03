"""The training method of a contract."""

from __future__ import annotations

from typing import Any

from shared.contract.choices import MethodType
from shared.contract.contracts import FineTuneContract
from worker.training.method import Method
from worker.training.preference.dpo import DirectPreference
from worker.training.preference.kto import KahnemanTversky
from worker.training.supervised import SupervisedMethod


def method_of(contract: FineTuneContract) -> Method[Any, Any]:
    """Return the training method that a contract names."""
    match contract.method.type:
        case MethodType.DPO:
            return DirectPreference(contract.preference)
        case MethodType.KTO:
            return KahnemanTversky(contract.preference)
        case _:
            return SupervisedMethod()
