"""The services of the API: everything that routes work with, created once per application."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request

from api.base_fetcher import BaseFetcher
from api.body_buffers import BodyBuffers
from api.data_view.readers import FileReaders
from api.data_view.reports import FileReports
from api.data_view.tenant_turns import TenantTurns
from api.grader_sandboxes import GraderSandboxes
from api.inference.gateway import Gateway
from api.inference.lookup_cache import LookupCache
from api.inference.rate_limits.failed_authentications import FailedAuthentications
from api.inference.rate_limits.limiter import RateLimiter, make_limiter
from api.inference.replicas.client import ReplicaClient
from api.inference.replicas.failover import Failover
from api.inference.replicas.health import HealthMonitor
from api.inference.replicas.limits import ReplicaLimits
from api.inference.replicas.pool import Replica, ReplicaPool, ReplicaState
from api.inference.request_fields.grammars import GrammarLimits
from api.inference.shadow import ShadowTraffic
from api.inference.usage.meter import Meter
from api.metrics.installation import JobsCollector, ReplicaNow, ReplicasCollector, WebhooksCollector
from api.metrics.requests import ApiMetrics
from api.polling.event_feed import EventFeed
from api.polling.job_changes import JobChanges
from api.polling.job_versions import JobVersions
from api.polling.other_changes import ReplicaFacts
from api.polling.queue_places import QueuePlaces
from api.polling.readiness import Readiness
from api.settings import ApiSettings
from api.shadow_judge import ShadowJudge
from api.sign_in.provider import IdentityProvider
from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import Storage
from shared.base_models.catalog import Catalog
from shared.database.adapters import Adapters
from shared.database.callers.keys import Keys
from shared.database.callers.sign_ins import SignIns
from shared.database.connection import Database
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.gates.policies import SERVER_SCOPE, Author, Policies
from shared.database.jobs import Jobs
from shared.database.names.aliases import Aliases
from shared.database.overview.job_counts import count_jobs
from shared.database.overview.webhook_counts import count_webhooks
from shared.database.queueing.queue_state import QueueReader
from shared.database.usage import Usage
from shared.gates.policy_file import policy_digest, read_policy, read_policy_file
from shared.graders.remote_models import RemoteModels
from shared.queue import JobQueue, make_celery
from shared.replicas import replica_name
from shared.worker_registry import WorkerRegistry

JOIN_THREADS = 4
PROVIDER_THREADS = 4
"""Number of threads that wait for the identity provider; they do not answer other requests."""


@dataclass
class ShutdownFlag:
    """Flag that the process is shutting down. It is not a ``threading.Event``: a signal handler sets it, and the
    event's lock could block the handler permanently.
    """

    has_begun: bool = False


@dataclass(frozen=True)
class Services:
    """Objects that the routes work with: the database's operations, the storage, the job queue, and the gateway to the
    replicas.

    Attributes:
        shutdown: whether this process is shutting down.
        joining: threads that join the parts of uploads, so that large files leave threads for other requests.
    """

    settings: ApiSettings
    database: Database
    jobs: Jobs
    files: Files
    uploads: Uploads
    adapters: Adapters
    keys: Keys
    sign_ins: SignIns
    aliases: Aliases
    usage: Usage
    storage: Storage
    job_queue: JobQueue
    workers: WorkerRegistry
    lookup: LookupCache
    event_feed: EventFeed
    job_versions: JobVersions
    job_changes: JobChanges
    readiness: Readiness
    body_buffers: BodyBuffers
    failed_authentications: FailedAuthentications
    begun_sign_ins: FailedAuthentications
    replicas: ReplicaPool
    replica_limits: ReplicaLimits
    gateway: Gateway
    sandboxes: GraderSandboxes
    remote_models: RemoteModels
    base_fetcher: BaseFetcher
    file_readers: FileReaders
    file_reports: FileReports
    row_turns: TenantTurns
    curve_turns: TenantTurns
    queue_places: QueuePlaces
    metrics: ApiMetrics
    shutdown: ShutdownFlag = field(default_factory=ShutdownFlag)
    joining: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(JOIN_THREADS))
    identity_provider: IdentityProvider | None = None
    signing_in: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(PROVIDER_THREADS))

    def catalog(self) -> Catalog:
        """Return the current catalogue; bases may be added while the API runs."""
        return self.lookup.catalog()

    def start(self) -> None:
        """Start the background tasks, in the running loop."""
        self.gateway.failover.health.start()
        self.lookup.start()
        if self.settings.fetch_bases:
            self.base_fetcher.start()

    def assign_server_policy(self) -> None:
        """Assign the settings' policy file to the server; without one, the current assignment stays."""
        path = self.settings.gate_policy
        if path is None:
            return
        source = read_policy_file(path)
        policy, policies, author = read_policy(source), Policies(self.database), Author.of_settings("MENS_GATE_POLICY")
        stored = policies.store(SERVER_SCOPE, policy_digest(policy), policy.model_dump(mode="json"), source, author)
        policies.assign(SERVER_SCOPE, stored.digest, author, f"the file {path.name}")

    async def close(self) -> None:
        """End the background tasks and close every connection; each part is closed before the parts that it uses."""
        gateway = self.gateway
        self.base_fetcher.close()
        self.file_reports.close()
        await to_thread.run_sync(self.file_readers.end_idle, 0.0)
        await gateway.shadows.close()
        await self.sandboxes.close()
        await gateway.failover.health.close()
        await gateway.failover.client.aclose()
        await gateway.limiter.close()
        await gateway.meter.close()
        self.remote_models.close()
        if self.identity_provider:
            self.identity_provider.close()
        self.queue_places.close()
        await self.job_versions.close()
        await self.job_changes.close()
        await self.lookup.close()
        self.workers.close()
        self.database.close()


def make_services(
    settings: ApiSettings,
    *,
    job_queue: JobQueue | None = None,
    limiter: RateLimiter | None = None,
    meter: Meter | None = None,
    replica_limits: ReplicaLimits | None = None,
) -> Services:
    """Create and connect all services; no query or message is sent yet.

    Args:
        settings: settings of the process.
        job_queue: replaces the job queue that the settings define; so do the following arguments.
        limiter: limiter of keys.
        meter: meter of usage.
        replica_limits: limits of the serving tier.
    """
    database, replicas = Database(settings.database_url), ReplicaPool(settings.serving_urls)
    workers = WorkerRegistry(settings.broker_url)
    usage, lookup = Usage(database), LookupCache(database, settings.catalog_path)
    metrics = ApiMetrics(settings)
    key = settings.serving_key.get_secret_value()
    sandboxes, failover = GraderSandboxes(settings.sandbox), _make_failover(settings, replicas, key)
    services = Services(
        settings=settings,
        database=database,
        jobs=Jobs(database),
        files=Files(database),
        uploads=Uploads(database),
        adapters=Adapters(database),
        keys=Keys(database),
        sign_ins=SignIns(database),
        aliases=Aliases(database),
        usage=usage,
        storage=open_storage(settings),
        job_queue=job_queue or JobQueue(make_celery(settings.broker_url)),
        workers=workers,
        queue_places=QueuePlaces(QueueReader(database), workers),
        lookup=lookup,
        event_feed=EventFeed(settings.max_event_streams, settings.tenant_event_streams),
        job_versions=JobVersions(database, settings.event_poll_seconds),
        job_changes=JobChanges(
            database, settings.event_poll_seconds, lambda: [replica_facts(replica) for replica in replicas.all]
        ),
        readiness=Readiness(database.ping, workers.machines),
        body_buffers=BodyBuffers(settings.tenant_body_bytes),
        failed_authentications=FailedAuthentications(settings.failed_authentications_per_minute),
        begun_sign_ins=FailedAuthentications(settings.failed_authentications_per_minute),
        replicas=replicas,
        replica_limits=replica_limits or ReplicaLimits(replicas.urls, key),
        sandboxes=sandboxes,
        remote_models=RemoteModels(settings.named_models, settings.grader_embeddings),
        metrics=metrics,
        base_fetcher=BaseFetcher(lookup.catalog, settings),
        file_readers=FileReaders(),
        file_reports=FileReports(),
        identity_provider=IdentityProvider(settings) if settings.oidc_issuer else None,
        row_turns=TenantTurns("rows of files"),
        curve_turns=TenantTurns("curves or costs"),
        gateway=Gateway(
            limiter=limiter or make_limiter(settings.broker_url, settings.tenant_limits),
            lookup=lookup,
            meter=meter or Meter(usage),
            failover=failover,
            shadows=ShadowTraffic(ShadowJudge(database, lookup, failover, sandboxes, cache_secret=key)),
            metrics=metrics,
            cache_secret=key,
            max_body_bytes=settings.max_body_bytes,
            grammar_limits=GrammarLimits(settings.max_grammar_bytes, settings.max_grammar_depth),
        ),
    )
    _observe(services)
    return services


def _observe(services: Services) -> None:
    """Let scrapes read the values that are not counted by requests."""
    metrics, pool, workers = services.metrics, services.replicas, services.workers
    metrics.watch_streams(lambda: services.event_feed.open_streams)
    metrics.registry.register(
        JobsCollector(partial(count_jobs, services.database), lambda: len(workers.machines()), metrics.tenants)
    )
    metrics.registry.register(WebhooksCollector(partial(count_webhooks, services.database)))
    metrics.registry.register(
        ReplicasCollector(lambda: [ReplicaNow(r.url, r.state, r.in_flight) for r in list(pool.all)], ReplicaState)
    )


def _make_failover(settings: ApiSettings, replicas: ReplicaPool, key: str) -> Failover:
    client = ReplicaClient(key, settings.upstream_timeout_seconds)
    health = HealthMonitor(
        replicas,
        client,
        settings.serving_urls,
        settings.serving_dns,
        interval=settings.health_seconds,
        warm_seconds=settings.warm_seconds,
    )
    return Failover(replicas, client, health, settings.first_byte_seconds)


async def get_services(request: Request) -> Services:
    """Return the application's services. A coroutine, because FastAPI runs a plain function in its thread pool."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]


def replica_facts(replica: Replica) -> ReplicaFacts:
    """Return a replica's facts for the stream of changes."""
    base = replica.serves.base if replica.serves else None
    return ReplicaFacts(name=replica_name(replica.url), base=base, state=replica.state)
