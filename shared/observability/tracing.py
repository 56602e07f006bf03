"""Traces by OpenTelemetry: off unless an OTLP endpoint is set; while they are off, none of its packages is imported.

A trace continues wherever its ``traceparent`` (W3C Trace Context) goes: with a request's header, in a job's row, in the
environment of a child process. Spans have ids and names of stages, never questions, answers or training data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shared.errors import Code, InvalidRequest

VARIABLE = "TRACEPARENT"
"""Environment variable that gives a child process its parent span; other programs use the same name."""
ENDPOINT_VARIABLE = "MENS_OTLP_ENDPOINT"

Ids = Mapping[str, str]


@dataclass
class _Tracing:
    """The sender of this process's spans, if tracing is on."""

    tracer: Any = None
    provider: Any = None


_tracing = _Tracing()
"""The tracing of this process, a single one as in OpenTelemetry itself."""


def start_tracing(endpoint: str, service: str) -> None:
    """Send spans of this process to an OTLP receiver over HTTP from now on; without an endpoint, do nothing.

    Args:
        endpoint: base URL of the receiver, which accepts them at ``/v1/traces``.
        service: ``service.name`` of the spans.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: OpenTelemetry is not installed.
    """
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"{ENDPOINT_VARIABLE}: traces need OpenTelemetry, which is not installed here.",
            remedy="Install mens[tracing], or leave the variable out.",
            param=ENDPOINT_VARIABLE,
        ) from None
    _tracing.provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    _tracing.provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracing.tracer = _tracing.provider.get_tracer("mens")


def stop_tracing() -> None:
    """Send the remaining spans, and stop."""
    if _tracing.provider is not None:
        _tracing.provider.shutdown()
    _tracing.tracer = _tracing.provider = None


def is_tracing() -> bool:
    """Return true if this process sends spans."""
    return _tracing.tracer is not None


def begin_span(name: str, traceparent: str | None = None, ids: Ids | None = None) -> Any:
    """Begin a span that the caller ends with its ``end()``; return None while tracing is off.

    Args:
        name: name of the measured work.
        traceparent: trace context of the parent span, if that belongs to another process; None: the current one, if any.
        ids: its attributes.
    """
    if _tracing.tracer is None:
        return None
    context = _context_of(traceparent) if traceparent else None
    return _tracing.tracer.start_span(
        name, context, attributes={f"mens.{key}": value for key, value in (ids or {}).items()}
    )


@contextmanager
def span(name: str, traceparent: str | None = None, ids: Ids | None = None) -> Iterator[None]:
    """Run a block in a span, which is the current one inside. Arguments as for :func:`begin_span`."""
    if _tracing.tracer is None:
        yield
        return
    from opentelemetry.trace import use_span

    with use_span(begin_span(name, traceparent, ids), end_on_exit=True):
        yield


def enter_span(opened: Any) -> Any:
    """Make a span of :func:`begin_span` the current one; return the argument for :func:`leave_span`."""
    if opened is None:
        return None
    from opentelemetry import context, trace

    return context.attach(trace.set_span_in_context(opened))


def leave_span(opened: Any, token: Any) -> None:
    """End a span that was entered."""
    if opened is None:
        return
    from opentelemetry import context

    context.detach(token)
    opened.end()


def current_traceparent() -> str | None:
    """Return the current span's traceparent, for another process to continue; None while tracing is off."""
    if _tracing.tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def to_environment() -> dict[str, str]:
    """Return the environment variables with which a child process continues the current trace."""
    traceparent = current_traceparent()
    return {VARIABLE: traceparent} if traceparent else {}


@contextmanager
def traced_child(name: str) -> Iterator[None]:
    """Run a child process's whole work in one span of its parent's trace; without a trace, do nothing."""
    traceparent = os.environ.get(VARIABLE)
    if not traceparent:
        yield
        return
    start_tracing(os.environ.get(ENDPOINT_VARIABLE, ""), f"mens-{name}")
    try:
        with span(name, traceparent):
            yield
    finally:
        stop_tracing()


def _context_of(traceparent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})
