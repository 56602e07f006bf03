"""What the routes work with, made once per application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from api.directory import Directory
from api.limits import Limiter, make_limiter
from api.metering import Meter
from api.replica_client import ReplicaClient
from api.replica_watch import Watch
from api.replicas import Replicas
from api.serving_limits import ServingTier
from api.settings import ApiSettings
from api.shadow import ShadowTraffic
from shared.aliases import Aliases
from shared.catalog import Catalog
from shared.db import Database
from shared.keys import Keys
from shared.ledger import Ledger
from shared.queue import Doorbell, make_celery
from shared.registry import Registry
from shared.storage import Storage
from shared.usage import Usage


@dataclass
class Stopping:
    """A flag, and no event: a signal's handler sets it, which a lock could block for ever."""

    has_begun: bool = False


@dataclass(frozen=True)
class Services:
    """The API's hands: ledger, registry, aliases, storage, doorbell, and the serving tier's client and replicas.

    Attributes:
        stopping: whether this process was told to stop.
    """

    settings: ApiSettings
    database: Database
    ledger: Ledger
    registry: Registry
    keys: Keys
    aliases: Aliases
    storage: Storage
    doorbell: Doorbell
    serving_tier: ServingTier
    directory: Directory
    limiter: Limiter
    usage: Usage
    meter: Meter
    upstream: ReplicaClient
    shadows: ShadowTraffic
    replicas: Replicas
    watch: Watch
    stopping: Stopping = field(default_factory=Stopping)

    def catalog(self) -> Catalog:
        """The catalogue as it is now; bases may be added while the API runs."""
        return self.directory.catalog()


def make_services(settings: ApiSettings) -> Services:
    """Connect everything; nothing is asked of the database or the broker yet."""
    database, replicas = Database(settings.database_url), Replicas(settings.serving_urls)
    usage = Usage(database)
    key = settings.serving_key.get_secret_value()
    upstream = ReplicaClient(key, settings.upstream_timeout_seconds)
    return Services(
        settings=settings,
        database=database,
        ledger=Ledger(database),
        registry=Registry(database),
        keys=Keys(database),
        aliases=Aliases(database),
        storage=Storage(settings.storage_dir),
        doorbell=Doorbell(make_celery(settings.broker_url)),
        serving_tier=ServingTier(replicas.urls, key),
        directory=Directory(database, settings.catalog_path),
        limiter=make_limiter(settings.broker_url),
        usage=usage,
        meter=Meter(usage),
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


async def get_services(request: Request) -> Services:
    """The application's services. A coroutine, because what is none goes through the thread pool."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
