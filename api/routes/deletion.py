"""DELETE /v1/models/{id}: a tuned model that nobody needs any more (docs/retention.md says how it goes)."""

from __future__ import annotations

from fastapi import APIRouter

from api.authentication import requires
from api.ids import Id
from api.openai_types import Deleted
from api.scope import ScopeDep
from api.services import ServicesDep
from shared.errors import Code, Conflict
from shared.tenancy import Role

router = APIRouter(prefix="/v1", tags=["models"])


@router.delete("/models/{model:path}", dependencies=[requires(Role.ADMIN)])
def delete_model(model: Id, services: ServicesDep, scope: ScopeDep) -> Deleted:
    """Delete an adapter or a checkpoint, unless an alias points to it or a job needs it. Its record stays.

    From now on nobody is answered by it. Replicas let go of it, and its files are removed, shortly after.
    """
    if any(base.name == model for base in services.catalog().bases):
        raise Conflict(
            Code.MODEL_NOT_DELETABLE,
            f"{model!r} is a base model.",
            remedy="Take it out of the catalogue's file; adapters that were trained on it would be of no use.",
            param="model",
        )
    if scope.aliases.find(model):
        raise Conflict(
            Code.MODEL_NOT_DELETABLE,
            f"{model!r} is an alias, a name that points to a model.",
            remedy=f"Delete the alias with DELETE /v1/aliases/{model}, or the model by its own id.",
            param="model",
        )
    scope.deletions.begin(model)
    return Deleted(id=model, object="model")
