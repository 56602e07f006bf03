"""What the serving tier can serve, asked of its replicas, so that nothing is trained that could not be served."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import httpx

from shared.servability import ServingLimits

ASK_SECONDS = 2.0
KEEP_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass
class ServingTier:
    """The replicas' limits, remembered for a few seconds.

    Args:
        urls: of every replica.
        key: the serving key.
    """

    urls: list[str]
    key: str
    _known: dict[str, ServingLimits] = field(default_factory=dict)
    _asked_at: float = 0.0

    def limits(self) -> ServingLimits | None:
        """The tightest limits of all replicas; None when none of them answers.

        A tier that is away is no reason to refuse a job: it may be back before the training ends, and publishing
        checks again.
        """
        if time.monotonic() - self._asked_at > KEEP_SECONDS:
            self._known = {url: limits for url in self.urls if (limits := self._ask(url))}
            self._asked_at = time.monotonic()
        found = list(self._known.values())
        if not found:
            return None
        lengths = [limits.max_model_len for limits in found if limits.max_model_len is not None]
        digests = [limits.base_digest for limits in found if limits.base_digest is not None]
        return ServingLimits(
            max_lora_rank=min(limits.max_lora_rank for limits in found),
            base_digest=digests[0] if digests else None,
            max_model_len=min(lengths, default=None),
        )

    def _ask(self, url: str) -> ServingLimits | None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            response = httpx.get(f"{url}/mens/limits", headers=headers, timeout=ASK_SECONDS, trust_env=False)
            facts = response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            logger.warning("the replica %s does not tell its limits: %s", url, error)
            return None
        return ServingLimits(
            max_lora_rank=facts["max_lora_rank"],
            base_digest=facts["base_digest"],
            max_model_len=facts["max_model_len"],
        )
