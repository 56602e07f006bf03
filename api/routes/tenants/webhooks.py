"""/v1/webhook_endpoints: a tenant's webhook endpoints, for its admins; OpenAI's routes, and deliveries in addition."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Literal

from anyio import sleep
from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StringConstraints

from api.openai.types import Deleted
from api.services import ServicesDep
from api.web.auth import requires
from api.web.params import After, Id, Limit, Page, page_of
from api.web.tenant_view import TenantViewDep
from shared.database.tenancy import Role
from shared.database.webhooks.endpoints import Delivery, DeliveryStatus, Endpoint, EndpointFields
from shared.webhooks.events import EventType
from shared.webhooks.targets import MAX_URL_CHARS, AllowedTargets, check_url

router = APIRouter(prefix="/v1/webhook_endpoints", tags=["webhooks"], dependencies=[requires(Role.ADMIN)])

POLL_SECONDS = 0.25
MAX_WAIT_SECONDS = 60.0

EndpointName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_CHARS)]
EventTypes = Annotated[
    list[EventType], Field(min_length=1, max_length=100), AfterValidator(lambda types: list(dict.fromkeys(types)))
]
"""Each type once, in the given order."""


class CreateEndpoint(BaseModel):
    """Request for a new endpoint."""

    model_config = ConfigDict(extra="forbid")
    name: EndpointName = Field(description="Purpose of the endpoint, in one line.")
    url: Url = Field(description="URL that webhooks are posted to: https://, on a public host.")
    event_types: EventTypes = Field(description="Event types that are sent to it.")


class UpdateEndpoint(BaseModel):
    """Changes of an endpoint. A field that is left out keeps its value."""

    model_config = ConfigDict(extra="forbid")
    name: EndpointName | None = None
    url: Url | None = None
    event_types: EventTypes | None = Field(
        None, description="Event types that are sent to it from now on; they replace the previous ones."
    )
    enabled: StrictBool | None = Field(
        None,
        description="False: no webhooks are sent. True: enables a disabled endpoint again, for events from then on.",
    )


class RotateSecret(BaseModel):
    """Request for a new secret."""

    model_config = ConfigDict(extra="forbid")
    keep_old_secret_active_for_24_hours: StrictBool = Field(
        False, description="True: for 24 hours, webhooks also carry a signature by the previous secret."
    )


class TestEndpoint(BaseModel):
    """Request for a sample event."""

    model_config = ConfigDict(extra="forbid")
    event_type: EventType = Field(EventType.JOB_SUCCEEDED, description="Type of the sample.")
    wait_seconds: StrictFloat = Field(
        20.0, ge=0, le=MAX_WAIT_SECONDS, description="How long the response waits for the delivery."
    )


class EndpointState(BaseModel):
    """Fields of an endpoint that OpenAI's does not have."""

    enabled: bool
    disabled_at: datetime | None = Field(
        description="When it was disabled, after three days without a successful delivery or after a response with status 410."
    )
    disabled_reason: str | None
    old_secret_until: datetime | None = Field(
        description="Until then webhooks are also signed with the secret before the last rotation."
    )
    last_delivered_at: datetime | None


class WebhookEndpoint(BaseModel):
    """An endpoint, in OpenAI's shape."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str = Field(description="Last characters of the secret.")
    mens: EndpointState


class WebhookEndpointWithSecret(WebhookEndpoint):
    """The same with its secret, which is shown only here."""

    signing_secret: str


class TestResult(BaseModel):
    """Result of a sample event."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int | None = Field(
        description="Status of the endpoint's response; null: no response, or no response yet."
    )
    success: bool = Field(description="True if the endpoint has responded.")
    mens: Delivery


@router.post("")
def create_webhook_endpoint(
    body: CreateEndpoint, services: ServicesDep, view: TenantViewDep
) -> WebhookEndpointWithSecret:
    """Create an endpoint. Only this response, and that of a rotation, shows its secret."""
    check_url(body.url, AllowedTargets.parse(services.settings.webhook_allowed))
    endpoint, secret = view.webhook_endpoints.create(body.name, body.url, body.event_types)
    return WebhookEndpointWithSecret(**_fields(endpoint), signing_secret=secret)


@router.get("")
def list_webhook_endpoints(view: TenantViewDep, after: After = None, limit: Limit = 20) -> Page[WebhookEndpoint]:
    """The tenant's endpoints, newest first."""
    endpoints = view.webhook_endpoints.list(after=after, limit=limit)
    return page_of([WebhookEndpoint(**_fields(endpoint)) for endpoint in endpoints], limit)


@router.get("/{webhook_endpoint_id}")
def retrieve_webhook_endpoint(webhook_endpoint_id: Id, view: TenantViewDep) -> WebhookEndpoint:
    """One endpoint."""
    return WebhookEndpoint(**_fields(view.webhook_endpoints.get(webhook_endpoint_id)))


@router.post("/{webhook_endpoint_id}")
def update_webhook_endpoint(
    webhook_endpoint_id: Id, body: UpdateEndpoint, services: ServicesDep, view: TenantViewDep
) -> WebhookEndpoint:
    """Change an endpoint. If that disables it, its waiting deliveries fail."""
    if body.url is not None:
        check_url(body.url, AllowedTargets.parse(services.settings.webhook_allowed))
    fields = EndpointFields(body.name, body.url, body.event_types, body.enabled)
    return WebhookEndpoint(**_fields(view.webhook_endpoints.update(webhook_endpoint_id, fields)))


@router.delete("/{webhook_endpoint_id}")
def delete_webhook_endpoint(webhook_endpoint_id: Id, view: TenantViewDep) -> Deleted:
    """Delete an endpoint and the list of its deliveries. Events that were not delivered yet are dropped."""
    view.webhook_endpoints.delete(webhook_endpoint_id)
    return Deleted(id=webhook_endpoint_id, object="webhook_endpoint.deleted")


@router.post("/{webhook_endpoint_id}/rotate_secret")
def rotate_webhook_secret(
    webhook_endpoint_id: Id, view: TenantViewDep, body: RotateSecret | None = None
) -> WebhookEndpointWithSecret:
    """Give an endpoint a new secret, at once or with 24 hours in which webhooks carry the signatures of both."""
    keep_old = body is not None and body.keep_old_secret_active_for_24_hours
    endpoint, secret = view.webhook_endpoints.rotate_secret(webhook_endpoint_id, keep_old=keep_old)
    return WebhookEndpointWithSecret(**_fields(endpoint), signing_secret=secret)


@router.post("/{webhook_endpoint_id}/test")
async def test_webhook_endpoint(
    webhook_endpoint_id: Id, view: TenantViewDep, body: TestEndpoint | None = None
) -> TestResult:
    """Send a sample event once; the control worker sends it like any other event. The object that it names does not
    exist.
    """
    request, endpoints = body or TestEndpoint.model_validate({}), view.webhook_endpoints
    until = time.monotonic() + request.wait_seconds
    delivery = await run_in_threadpool(endpoints.test, webhook_endpoint_id, request.event_type)
    while delivery.status == "pending" and time.monotonic() < until:
        await sleep(POLL_SECONDS)
        delivery = await run_in_threadpool(endpoints.delivery, webhook_endpoint_id, delivery.id)
    return TestResult(
        webhook_endpoint_id=webhook_endpoint_id,
        event_type=delivery.type,
        status_code=delivery.status_code,
        success=delivery.status_code is not None,
        mens=delivery,
    )


@router.get("/{webhook_endpoint_id}/deliveries")
def list_webhook_deliveries(
    webhook_endpoint_id: Id,
    view: TenantViewDep,
    after: After = None,
    limit: Limit = 20,
    status: Annotated[DeliveryStatus | None, Query(description="State of the deliveries; null: any.")] = None,
) -> Page[Delivery]:
    """List the deliveries of an endpoint, newest first: attempts, the last response, the last error."""
    return page_of(
        view.webhook_endpoints.deliveries(webhook_endpoint_id, after=after, limit=limit, status=status), limit
    )


def _fields(endpoint: Endpoint) -> dict[str, Any]:
    state = EndpointState(
        enabled=endpoint.disabled_at is None,
        disabled_at=endpoint.disabled_at,
        disabled_reason=endpoint.disabled_reason,
        old_secret_until=endpoint.old_secret_until,
        last_delivered_at=endpoint.last_delivered_at,
    )
    return {
        "id": endpoint.id,
        "created_at": int(endpoint.created_at.timestamp()),
        "updated_at": int(endpoint.updated_at.timestamp()),
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": endpoint.event_types,
        "signing_secret_hint": endpoint.signing_secret_hint,
        "mens": state,
    }
