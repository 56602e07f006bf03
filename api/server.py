"""Graceful shutdown of an API process: responses in flight end first, as in a replica (`serving/middleware/graceful_shutdown.py`)."""

from __future__ import annotations

from types import FrameType

import uvicorn

from api.services import Services


class Server(uvicorn.Server):
    """uvicorn's server, which at a signal accepts no more connections and lets requests in flight end, up to a time.

    It sets the application's shutdown flag at once, so that responses that would never end by themselves end too, like the
    events of a running job.
    """

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Set the flag when a signal comes."""
        self._services.shutdown.has_begun = True
        super().handle_exit(sig, frame)
