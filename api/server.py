"""The HTTP server of an API process: its limits on connections (`api/connection.py`), and its graceful shutdown.

At a shutdown, responses in flight end first, as in a replica (`serving/middleware/graceful_shutdown.py`).
"""

from __future__ import annotations

import math
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from api.connection import Connections, connection_class
from api.services import Services
from api.settings import ApiSettings
from api.web.job_polls import unchanged_job


def server_config(app: Any, settings: ApiSettings) -> uvicorn.Config:
    """Return the uvicorn configuration that serves the application."""
    return uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        http=connection_class(Connections(settings, partial(unchanged_job, app.state.services))),
        ws="none",
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
        server_header=False,
        access_log=False,  # the application writes its own, after the response
        log_config=None if settings.log_format == "json" else LOGGING_CONFIG,  # None: as the root logger writes
    )


class Server(uvicorn.Server):
    """uvicorn's server, which on a signal accepts no more connections and lets requests in flight finish, up to a time
    limit.

    It sets the application's shutdown flag at once, so that endless responses end too, such as the events of a running
    job.
    """

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Set the flag on a signal."""
        self._services.shutdown.has_begun = True
        super().handle_exit(sig, frame)
