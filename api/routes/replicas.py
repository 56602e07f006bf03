"""The serving replicas as this front door sees them: /v1/replicas."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from api.authentication import require_operator
from api.pages import WholeList
from api.replicas import Replica, State
from api.services import ServicesDep
from shared.replicas import replica_name

router = APIRouter(prefix="/v1", tags=["replicas"], dependencies=[Depends(require_operator)])


class ReplicaView(BaseModel):
    """One serving replica."""

    name: str = Field(
        description="What it is called where its address is not told: in errors, and to who is no operator."
    )
    url: str
    state: State
    in_flight: int = Field(description="Requests of this API process that it is working on.")
    last_error: str | None = Field(description="What was last wrong with it, however long ago.")
    last_error_at: int | None = Field(description="When that was, in unix seconds; null: nothing ever was.")


@router.get("/replicas")
async def list_replicas(services: ServicesDep) -> WholeList[ReplicaView]:
    """Every serving replica that this API process knows, for who runs the installation. Another process may see them otherwise."""
    return WholeList(data=[_view(replica) for replica in services.replicas.all])


def _view(replica: Replica) -> ReplicaView:
    return ReplicaView(
        name=replica_name(replica.url),
        url=replica.url,
        state=replica.state,
        in_flight=replica.in_flight,
        last_error=replica.last_error,
        last_error_at=replica.last_error_at,
    )
