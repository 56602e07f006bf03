"""Ids and names in a path, as far as a database can look for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

Id = Annotated[str, Path(max_length=160, pattern=r"^[^\x00]+$")]
