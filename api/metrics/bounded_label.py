"""Values of a metric's label, bounded in number: Prometheus keeps a time series for each, and callers choose them."""

from __future__ import annotations

import threading
from collections.abc import Collection

OTHER = "other"
"""Label under which all values beyond the bound are counted."""
LONGEST = 128


class BoundedLabel:
    """Decides which values of a label have separate time series.

    Values that the operator names always have one. Callers choose the other values: the first ones have a time series
    each until the bound is reached; later ones, and those longer than 128 characters, become :data:`OTHER`. Safe to
    call from many threads.

    Args:
        named: values that the operator names; they do not count towards the bound.
        most: number of other values that may have a time series.
    """

    def __init__(self, named: Collection[str] = (), most: int = 0) -> None:
        self._values = set(named)
        self._left = most
        # Two threads must not take the last free label for two values.
        self._lock = threading.Lock()

    def of(self, value: str) -> str:
        """Return the label for a value."""
        if value in self._values:
            return value
        if len(value) > LONGEST:
            return OTHER
        with self._lock:
            if self._left > 0 and value not in self._values:
                self._left -= 1
                self._values.add(value)
            return value if value in self._values else OTHER
