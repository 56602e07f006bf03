"""Endpoints of the models of a recipe: the installation, and servers that the environment names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shared.errors import Code, InvalidRequest
from shared.settings import RemoteModel

INSTALLATION = "installation"
PERMITS_TRAINING = "permits_training"


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model behind OpenAI's route of chats.

    Attributes:
        name: name of the model in the recipe.
        place: identity of the server in provenance and in keys of responses: its URL, or :data:`INSTALLATION`, whose
            address may change.
        url: base URL, with ``/v1``.
        model: the model's name at the server.
        key: sent as the bearer token.
        headers: additional headers.
    """

    name: str
    place: str
    url: str
    model: str
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        """True if the installation serves it."""
        return self.place == INSTALLATION


def find_endpoints(
    names: Iterable[str], remote: Mapping[str, RemoteModel], installation: Callable[[str], ModelEndpoint]
) -> dict[str, ModelEndpoint]:
    """Return the endpoint of each model.

    Args:
        remote: models of other servers, by name.
        installation: returns the endpoint of a model that the installation serves.
    """
    endpoints: dict[str, ModelEndpoint] = {}
    for name in names:
        if target := remote.get(name):
            url = target.url.rstrip("/")
            endpoints[name] = ModelEndpoint(name, url, url, target.model or name, target.key.get_secret_value())
        else:
            endpoints[name] = installation(name)
    return endpoints


def require_terms(endpoints: Iterable[ModelEndpoint], terms: str | None, *, accepted: bool) -> None:
    """Raise an error if the recipe uses a model of another server without stating that its terms permit training.

    Raises:
        InvalidRequest: ``CORPUS_TERMS_UNSTATED``.
    """
    others = [endpoint for endpoint in endpoints if not endpoint.is_ours]
    if others and terms != PERMITS_TRAINING and not accepted:
        names = ", ".join(f"{endpoint.name} ({endpoint.url})" for endpoint in others)
        raise InvalidRequest(
            Code.CORPUS_TERMS_UNSTATED,
            f"The recipe uses models of other servers: {names}. Many providers forbid training on their models' "
            "answers.",
            remedy=(
                "Read the terms. If they permit it, write `terms: permits_training` into the recipe, or use "
                "--accept-terms."
            ),
            param="terms",
        )
