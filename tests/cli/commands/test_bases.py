"""``mens base``: the families that a tiny base can be made of."""

from __future__ import annotations

from cli.commands.bases import Family
from shared.base_models.families import TINY_FAMILIES


def test_every_family_with_a_tiny_base_can_be_built() -> None:
    assert list(Family) == list(TINY_FAMILIES)
