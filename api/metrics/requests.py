"""Counters of an API process's requests: by route, by code of a refusal, by model. docs/metrics.md lists every name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from api.errors import ERROR_CODE
from api.metrics.bounded_label import OTHER, BoundedLabel
from api.settings import ApiSettings
from shared.database.usage import Amount
from shared.observability.metrics_listener import process_registry

TENANT = "mens_tenant"
"""Name in a request's state of its key's tenant."""
MODEL = "mens_model"
"""Name in a request's state of the model that answers it, by its resolved name."""
STREAM_TYPES = (b"text/event-stream", b"application/x-ndjson")
TOO_MANY = 429
ROUTE_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.5, 10.0, 60.0)
FIRST_TOKEN_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RESPONSE_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request whose response has ended.

    Attributes:
        route: its path with parameters' names; None if no route matches.
        state: the request's state (ASGI).
        seconds: duration from its head to the end of its response.
        first_byte_seconds: time to the first byte of a stream's body; None for other responses.
    """

    route: str | None
    method: str
    status: int
    state: dict[str, Any]
    seconds: float
    first_byte_seconds: float | None


class ApiMetrics:
    """The metrics of one API process and the registry that they are in.

    Args:
        settings: decide which tenants and models have separate time series.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self.registry = process_registry()
        self.tenants = BoundedLabel(settings.metrics_tenants, settings.metrics_max_tenants)
        self._models = BoundedLabel(settings.metrics_models, settings.metrics_max_models)
        where = self.registry
        self._requests = Counter(
            "mens_api_requests", "Requests by route and status.", ("route", "method", "status"), registry=where
        )
        self._seconds = Histogram(
            "mens_api_request_seconds",
            "Seconds from a request's head to the end of its response.",
            ("route",),
            buckets=ROUTE_SECONDS,
            registry=where,
        )
        self._refusals = Counter(
            "mens_api_refusals", "Requests that got an error, by its code (docs/errors.md).", ("code",), registry=where
        )
        self._quota_refusals = Counter(
            "mens_api_quota_refusals",
            "Requests over a limit or quota, by error code and the key's tenant.",
            ("tenant", "code"),
            registry=where,
        )
        self._first_token = Histogram(
            "mens_model_first_token_seconds",
            "Seconds from a request's head to the first byte of its stream.",
            ("model",),
            buckets=FIRST_TOKEN_SECONDS,
            registry=where,
        )
        self._response = Histogram(
            "mens_model_response_seconds",
            "Seconds from a request's head to the end of a model's response.",
            ("model",),
            buckets=RESPONSE_SECONDS,
            registry=where,
        )
        self._tokens = Counter(
            "mens_model_tokens", "Tokens of responses: prompt, cached or completion.", ("model", "kind"), registry=where
        )
        self._streams = Gauge("mens_event_streams", "Open streams of job events.", registry=where)

    def watch_streams(self, count: Callable[[], float]) -> None:
        """Read the number of open event streams from this function."""
        self._streams.set_function(count)

    def finished(self, request: FinishedRequest) -> None:
        """Count a request."""
        route, state = request.route or OTHER, request.state
        self._requests.labels(route, request.method if request.route else OTHER, str(request.status)).inc()
        self._seconds.labels(route).observe(request.seconds)
        if (code := state.get(ERROR_CODE)) is not None:
            self._refusals.labels(code).inc()
            if request.status == TOO_MANY:
                self._quota_refusals.labels(self.tenants.of(state.get(TENANT, "")), code).inc()
        elif (name := state.get(MODEL)) is not None:
            model = self._models.of(name)
            self._response.labels(model).observe(request.seconds)
            if request.first_byte_seconds is not None:
                self._first_token.labels(model).observe(request.first_byte_seconds)

    def used(self, name: str, amount: Amount) -> None:
        """Count the tokens of a model's response.

        Args:
            name: name of the model that the request resolved to.
            amount: the usage.
        """
        model = self._models.of(name)
        self._tokens.labels(model, "prompt").inc(amount.prompt_tokens)
        self._tokens.labels(model, "cached").inc(amount.cached_tokens)
        self._tokens.labels(model, "completion").inc(amount.completion_tokens)
