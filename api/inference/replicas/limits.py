"""Limits of the serving tier, read from its replicas, so that every trained adapter can be served."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import httpx

from shared.base_models.families import HEAD_FAMILIES
from shared.http_retry import keyed_client
from shared.preflight.types import ServingLimits
from shared.replicas import ReplicaCapabilities

# A submission waits for the answer.
TIMEOUT_SECONDS = 2.0
# The limits of a replica change only with a restart.
CACHE_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass
class ReplicaLimits:
    """The replicas' limits, cached for a few seconds.

    Args:
        urls: URLs of all replicas.
        key: the serving key.
    """

    urls: list[str]
    key: str
    _cached: dict[str, ReplicaCapabilities] = field(default_factory=dict)
    _read_at: float = 0.0

    def limits(self, base_digest: str) -> ServingLimits | None:
        """Return the tightest limits of the replicas that serve a base; None if none of them responds.

        A job is not refused because a replica does not respond: the replica may be back before the training ends, and
        publishing checks again. If all respond and none serves the base, the limits of the others are returned, with
        another digest.
        """
        capabilities = self._capabilities()
        limits = [replica for replica in capabilities if replica.base_digest in (base_digest, None)]
        if not limits and len(capabilities) < len(self.urls):
            return None
        if not (limits := limits or capabilities):
            return None
        lengths = [replica.max_model_len for replica in limits if replica.max_model_len is not None]
        digests = [replica.base_digest for replica in limits if replica.base_digest is not None]
        return ServingLimits(
            max_lora_rank=min(replica.max_lora_rank for replica in limits),
            base_digest=digests[0] if digests else None,
            bases=frozenset(replica.base_name for replica in capabilities),
            max_model_len=min(lengths, default=None),
            head_families=HEAD_FAMILIES if all(replica.adapts_head for replica in limits) else frozenset(),
            # A replica that does not respond may serve the others.
            weights=frozenset(replica.weights for replica in limits) if len(capabilities) == len(self.urls) else None,
        )

    def served(self) -> frozenset[str] | None:
        """Return digests of the bases that the replicas serve, as certificates record them; None if none of them
        responds.
        """
        capabilities = self._capabilities()
        return frozenset(replica.served_digest for replica in capabilities) if capabilities else None

    def _capabilities(self) -> list[ReplicaCapabilities]:
        if time.monotonic() - self._read_at > CACHE_SECONDS:
            self._cached = {url: capabilities for url in self.urls if (capabilities := self._read(url))}
            self._read_at = time.monotonic()
        return list(self._cached.values())

    def _read(self, url: str) -> ReplicaCapabilities | None:
        try:
            with keyed_client(url, self.key, read_seconds=TIMEOUT_SECONDS) as client:
                response = client.get("/mens/limits")
            return ReplicaCapabilities.model_validate_json(response.raise_for_status().content)
        except (httpx.HTTPError, ValueError) as error:  # a body of another shape: another release, or another program
            logger.warning("the replica %s does not report its limits: %s", url, error)
            return None
