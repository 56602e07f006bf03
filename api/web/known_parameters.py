"""Known parameters: a native route refuses an unknown query parameter, as it refuses an unknown field of a body.

Otherwise a misspelt filter would return everything. On the routes of OpenAI and Ollama, whose clients may send parameters
of their own, unknown ones are ignored.
"""

from __future__ import annotations

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from api.errors import OLLAMA_PATHS, OPENAI_PATHS, UNKNOWN_PARAMETER


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a query with unknown parameters; a dependency of every native route."""
    if not request.query_params or request.scope["path"].startswith((*OPENAI_PATHS, OLLAMA_PATHS)):
        return
    names = known_parameters(request.scope["route"])
    unknown = [name for name in request.query_params if name not in names]
    if unknown:
        faults = [
            {
                "type": UNKNOWN_PARAMETER,
                "loc": ("query", name),
                "msg": "this parameter does not exist",
                "ctx": {"known": names},
            }
            for name in unknown
        ]
        raise RequestValidationError(faults)


KNOWN_PARAMETERS = Depends(refuse_unknown_parameters)


def known_parameters(route: APIRoute) -> list[str]:
    """Return the names of a route's query parameters, those of its dependencies included."""
    return [field.alias for field in get_flat_dependant(route.dependant).query_params]
