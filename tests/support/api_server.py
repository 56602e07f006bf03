"""The API with its own connection class on a real socket, in a thread."""

from __future__ import annotations

from fastapi import FastAPI

from api.server import Server, server_config
from api.settings import ApiSettings


def make_server(app: FastAPI, settings: ApiSettings) -> Server:
    """A server for `run_server`, on a free port."""
    config = server_config(app, settings.model_copy(update={"api_port": 0, "drain_seconds": 1}))
    config.lifespan = "off"
    return Server(config, app.state.services)
