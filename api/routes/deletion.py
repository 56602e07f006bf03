"""DELETE /v1/models/{id}: deletes a tuned model (docs/retention.md describes the steps)."""

from __future__ import annotations

from fastapi import APIRouter

from api.openai.types import Deleted
from api.services import ServicesDep
from api.web.auth import requires
from api.web.params import Id
from api.web.tenant_view import TenantViewDep
from shared.database.tenancy import Role
from shared.errors import Code, Conflict

router = APIRouter(prefix="/v1", tags=["models"])


@router.delete("/models/{model:path}", dependencies=[requires(Role.ADMIN)])
def delete_model(model: Id, services: ServicesDep, view: TenantViewDep) -> Deleted:
    """Delete an adapter or a checkpoint, unless an alias points to it or a job needs it. Its record is kept.

    It answers no further requests. The replicas unload it, and its files are removed, shortly after.
    """
    if any(base.name == model for base in services.catalog().bases):
        raise Conflict(
            Code.MODEL_NOT_DELETABLE,
            f"{model!r} is a base model.",
            remedy=f"Remove it from the catalogue on the machine that has it: `mens base remove {model}`.",
            param="model",
        )
    if view.aliases.find(model):
        raise Conflict(
            Code.MODEL_NOT_DELETABLE,
            f"{model!r} is an alias, a name that points to a model.",
            remedy=f"Delete the alias with DELETE /v1/aliases/{model}, or the model by its own id.",
            param="model",
        )
    if view.names.find(model):
        raise Conflict(
            Code.MODEL_NOT_DELETABLE,
            f"{model!r} is a foreign name, which stands for a model.",
            remedy=f"Delete the name with DELETE /v1/names/{model}, or the model by its own id.",
            param="model",
        )
    view.deletions.begin(model)
    return Deleted(id=model, object="model")
