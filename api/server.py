"""How an API process stops: it lets answers under way end. A replica does the same (`serving/stopping.py`)."""

from __future__ import annotations

from types import FrameType

import uvicorn

from api.services import Services


class Server(uvicorn.Server):
    """uvicorn's: told to stop, it takes no more connections and lets requests under way end, up to a time.

    It tells the application at once, so that what would never end by itself, like the events of a running job, does.
    """

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come."""
        self._services.stopping.has_begun = True
        super().handle_exit(sig, frame)
