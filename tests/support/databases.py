"""On which databases tests run that ask for one, where that is not simply on both."""

from __future__ import annotations

import pytest

ON_SQLITE_IN_MAKE_TEST = pytest.mark.parametrize(
    "database_url",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.long])],
    indirect=True,
)
"""For tests whose work is not the database's, beside others of the same path that run on both in ``make test``."""
