"""``python -m api``: serve the API with uvicorn on MENS_API_HOST and MENS_API_PORT."""

from __future__ import annotations

import gc
import logging
import math
import sys
from contextlib import suppress

import uvicorn

from api.main import create_app
from api.server import Server
from api.settings import ApiSettings
from shared.settings import read_settings

SWITCH_SECONDS = 0.0005
"""How long a thread at work on the database or a data file may keep the event loop, and every stream, waiting."""


def main() -> None:
    """Entry point."""
    settings = read_settings(ApiSettings)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("api").setLevel(logging.INFO)  # not the root's: httpx logs every request at this level
    app = create_app(settings)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    # The objects of the application live for ever: later collections, for which callers wait, need not look at them.
    gc.freeze()
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
        server_header=False,
        access_log=False,  # the application writes its own, after the response
    )
    with suppress(KeyboardInterrupt):  # uvicorn has stopped in its own way, and then raises the signal again
        Server(config, app.state.services).run()


if __name__ == "__main__":
    main()
