"""The databases on which tests run, if not simply on both."""

from __future__ import annotations

import pytest

ON_SQLITE_IN_MAKE_TEST = pytest.mark.parametrize(
    "database_url",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.long])],
    indirect=True,
)
"""For tests that do not depend on the database, if other tests of the same code run on both in ``make test``."""
