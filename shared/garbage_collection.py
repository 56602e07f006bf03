"""Imports without garbage collections: imported objects stay alive, and scanning them repeatedly takes time.

The entry points of the API, of a worker, of a replica and of the trainer import their libraries inside
:func:`without_collections`, so this module imports nothing else from the project.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Suspend garbage collection inside the block, and exempt the objects at its end from later collections."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
