"""``python -m api``: serve the API with uvicorn on MENS_API_HOST and MENS_API_PORT."""

from __future__ import annotations

import logging

import uvicorn

from api.main import create_app
from api.settings import ApiSettings

SHUTDOWN_SECONDS = 10


def main() -> None:
    """Entry point."""
    settings = ApiSettings()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("api").setLevel(logging.INFO)  # ours alone: httpx tells every request at this level
    uvicorn.run(
        create_app(settings),
        host=settings.api_host,
        port=settings.api_port,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )


if __name__ == "__main__":
    main()
