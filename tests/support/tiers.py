"""Top-level packages of the product, as the wheel has them."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
TIERS = tuple(name.rstrip("*") for name in _PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
