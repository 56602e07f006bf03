"""The serving replicas as this API process sees them: /v1/replicas."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from api.inference.replicas.pool import ReplicaState
from api.services import ServicesDep
from api.web.auth import require_operator
from api.web.params import WholeList
from shared.replicas import replica_name

router = APIRouter(prefix="/v1", tags=["replicas"], dependencies=[Depends(require_operator)])


class ReplicaView(BaseModel):
    """One serving replica."""

    name: str = Field(
        description="Name that is shown in place of its address: in errors, and to callers who are not operators."
    )
    url: str
    base: str | None = Field(description="Name of the base model that it serves; null: not reported yet.")
    base_digest: str | None = Field(description="Digest of that base; null: not reported yet.")
    state: ReplicaState
    in_flight: int = Field(description="Requests of this API process in flight at the replica.")
    last_error: str | None = Field(description="Its last error, of any age.")
    last_error_at: int | None = Field(description="Time of its last error, in unix seconds; null: no error yet.")


@router.get("/replicas")
async def list_replicas(services: ServicesDep) -> WholeList[ReplicaView]:
    """The serving replicas as this API process sees them; for operators. Another process may see them in other states."""
    views = [
        ReplicaView(
            name=replica_name(replica.url),
            url=replica.url,
            base=replica.serves.base if replica.serves else None,
            base_digest=replica.serves.served_digest if replica.serves else None,
            state=replica.state,
            in_flight=replica.in_flight,
            last_error=replica.last_error,
            last_error_at=replica.last_error_at,
        )
        for replica in services.replicas.all
    ]
    return WholeList(data=views)
