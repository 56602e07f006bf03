"""Routing of a name's requests: to one adapter, or to several by weight, and optionally to a shadow. Pure: no database,
no HTTP.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictFloat,
    StringConstraints,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from shared.database.records import Value

PLAIN_WEIGHT = 100
_ADAPTER_ID = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,159}$"


def _check_adapter_id(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(_ADAPTER_ID, value):
        raise PydanticCustomError(
            "bad_adapter_id", "{id} is not an adapter id; list them with GET /v1/adapters", {"id": repr(value[:80])}
        )
    return value


AdapterId = Annotated[str, StringConstraints(pattern=_ADAPTER_ID), BeforeValidator(_check_adapter_id)]


class Target(Value):
    """An adapter that requests for an alias are routed to, and its weight among the others."""

    model_config = ConfigDict(extra="forbid")
    adapter: AdapterId = Field(description="Id of a published adapter.")
    weight: int = Field(ge=1, le=1_000_000, strict=True, description="Its share of the requests is weight / sum.")


class Shadow(Value):
    """An adapter that gets copies of requests without affecting the caller's response; its responses are discarded.

    With an eval, the responses are first compared with the caller's.
    """

    model_config = ConfigDict(extra="forbid")
    adapter: AdapterId = Field(description="Id of a published adapter.")
    share: StrictFloat = Field(gt=0, le=1, description="Share of the requests that is copied.")
    eval: Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")] | None = Field(
        None,
        description=(
            "Id of an eval whose criteria compare the copies' answers with the callers'; null: the copies' answers "
            "are discarded."
        ),
    )

    @model_serializer(mode="wrap")
    def _without_eval_as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A process of the previous release refuses fields that it does not know.
        return {name: value for name, value in dump(self).items() if name != "eval" or value is not None}


class Routing(Value):
    """Destinations of requests for an alias: targets by weight, and a shadow."""

    targets: tuple[Target, ...] = Field(min_length=1, max_length=16)
    shadow: Shadow | None = None

    @classmethod
    def to(cls, adapter_id: str) -> Routing:
        """Route all requests to one adapter."""
        return cls(targets=(Target(adapter=adapter_id, weight=PLAIN_WEIGHT),))

    @property
    def main(self) -> str:
        """The adapter with the largest weight; the first if several have it."""
        return max(self.targets, key=lambda target: target.weight).adapter

    @property
    def adapters(self) -> list[str]:
        """Ids of all adapters that get requests, the shadow last."""
        return [target.adapter for target in self.targets] + ([self.shadow.adapter] if self.shadow else [])

    def choose(self, point: float) -> str:
        """Return the adapter for a point in [0, 1).

        The targets are laid side by side in the order of their ids, each as wide as its share. So moving weight between
        two neighbouring targets moves exactly that share of points and leaves all others in place.
        """
        ordered = sorted(self.targets, key=lambda target: target.adapter)
        left = point * sum(target.weight for target in ordered)
        for target in ordered[:-1]:
            left -= target.weight
            if left < 0:
                return target.adapter
        return ordered[-1].adapter


class StandsFor(Value):
    """The model that a foreign name stands for: it answers all requests for that name."""

    kind: Literal["alias", "adapter", "base"]
    name: str = Field(description="Name of the alias or base, or the adapter's id.")


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a name's requests.

    Attributes:
        name: the alias, adapter or base that answers: the request's own name, or the target of a foreign name.
        routing: routing to adapters; None for a base.
        is_foreign: whether the request's name is a foreign name.
    """

    name: str
    routing: Routing | None
    is_foreign: bool = False


def sticky_point(alias: str, key: str) -> float:
    """Map a caller or conversation to a point in [0, 1) for an alias: the same in every process, permanently."""
    digest = hashlib.sha256(f"{alias}\0{key}".encode()).digest()
    # 53 bits, which a float below 1 holds exactly.
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)
