"""Pydantic models of `shared`: one frozen base per package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from pydantic import BaseModel

from shared.base_models.config import ModelValue
from shared.contract.values import ContractValue
from shared.preflight.types import PreflightValue

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("package", "base"), [("base_models", ModelValue), ("contract", ContractValue), ("preflight", PreflightValue)]
)
def test_every_model_of_a_package_has_its_frozen_base(package: str, base: type[BaseModel]) -> None:
    assert base.model_config["frozen"]
    assert base.model_config["extra"] == "forbid"
    for path in (ROOT / "shared" / package).glob("*.py"):
        module = import_module(f"shared.{package}.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__:
                assert issubclass(value, base), value
