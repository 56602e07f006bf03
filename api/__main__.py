"""``python -m api``: serve the API with uvicorn on MENS_API_HOST and MENS_API_PORT."""

from __future__ import annotations

import gc
import logging
import resource
import sys
from contextlib import suppress

from shared.garbage_collection import without_collections

with without_collections():
    from api.main import create_app
    from api.server import Server, server_config
    from api.settings import ApiSettings
    from shared.observability.logs import configure_logging
    from shared.observability.metrics_listener import listen
    from shared.settings import read_settings

SWITCH_SECONDS = 0.0005
"""Longest time for which a thread that works on the database or a data file may block the event loop, and with it every
stream.
"""


def main() -> None:
    """Entry point."""
    settings = read_settings(ApiSettings)
    configure_logging(settings.log_format)
    for name in ("api", "uvicorn"):  # the level of the root logger stays: httpx logs every request at this one
        logging.getLogger(name).setLevel(logging.INFO)
    app = create_app(settings)
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    # Collected first, because garbage that is frozen is never freed.
    gc.collect()
    # The application's objects are permanent: later collections, which delay callers, need not scan them.
    gc.freeze()
    listener = listen(app.state.services.metrics.registry, settings)
    with suppress(KeyboardInterrupt):  # after its own shutdown uvicorn raises the signal again
        Server(server_config(app, settings), app.state.services).run()
    if listener is not None:
        listener.close()


def _raise_file_limit() -> None:
    """Let the process open as many connections as the system allows; the usual soft limit is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
