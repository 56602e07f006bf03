"""What the routes work with, made once per application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import httpx
from fastapi import Depends, Request

from api.replica_watch import Watch
from api.replicas import Replicas
from api.serving_limits import ServingTier
from api.settings import ApiSettings
from api.shadow import ShadowTraffic
from shared.aliases import Aliases
from shared.catalog import Catalog, load_catalog
from shared.db import Database
from shared.ledger import Ledger
from shared.queue import Doorbell, make_celery
from shared.registry import Registry
from shared.storage import Storage

KEEPALIVE_SECONDS = 4.0


@dataclass(frozen=True)
class Services:
    """The API's hands: ledger, registry, aliases, storage, doorbell, and the serving tier's client and replicas."""

    settings: ApiSettings
    database: Database
    ledger: Ledger
    registry: Registry
    aliases: Aliases
    storage: Storage
    doorbell: Doorbell
    serving_tier: ServingTier
    upstream: httpx.AsyncClient
    shadows: ShadowTraffic
    replicas: Replicas
    watch: Watch

    def catalog(self) -> Catalog:
        """The catalogue as it is now; it is a small file, and bases may be added while the API runs."""
        return load_catalog(self.settings.catalog_path)


def make_services(settings: ApiSettings) -> Services:
    """Connect everything; nothing is asked of the database or the broker yet."""
    database, replicas = Database(settings.database_url), Replicas(settings.serving_urls)
    key = settings.serving_key.get_secret_value()
    upstream = httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        trust_env=False,  # replicas are reached directly, whatever proxy the machine uses for the world
        timeout=httpx.Timeout(settings.upstream_timeout_seconds, connect=5.0),
        # Shorter than the five seconds of a replica: a connection that both use and close at once fails a request.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_SECONDS),
    )
    return Services(
        settings=settings,
        database=database,
        ledger=Ledger(database),
        registry=Registry(database),
        aliases=Aliases(database),
        storage=Storage(settings.storage_dir),
        doorbell=Doorbell(make_celery(settings.broker_url)),
        serving_tier=ServingTier(replicas.urls, key),
        upstream=upstream,
        shadows=ShadowTraffic(),
        replicas=replicas,
        watch=Watch(
            replicas,
            upstream,
            settings.serving_urls,
            settings.serving_dns,
            interval=settings.health_seconds,
            warm_seconds=settings.warm_seconds,
        ),
    )


def get_services(request: Request) -> Services:
    """The application's services."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
