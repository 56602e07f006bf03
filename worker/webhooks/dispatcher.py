"""Delivery rounds: due webhooks are claimed and sent by a few threads until none is due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from shared.database.connection import Database
from shared.database.webhooks.deliveries import ClaimedDelivery, Deliveries, Outcome
from shared.webhooks.targets import AllowedTargets
from worker.settings import WorkerSettings
from worker.webhooks.sender import WebhookSender

THREADS = 16
"""Number of endpoints that one process sends to concurrently; each endpoint gets one delivery at a time."""
ROUND_SECONDS = 60.0
"""After this time no new delivery starts: the next round removes old rows, and then continues."""
PRUNE_SECONDS = 3600.0

logger = logging.getLogger(__name__)


@dataclass
class WebhookDispatcher:
    """Delivers the webhooks of the outbox.

    Attributes:
        stopping: set when the process ends; no new delivery starts then.
        count: called with the outcome of every attempt.
    """

    deliveries: Deliveries
    sender: WebhookSender
    stopping: threading.Event = field(default_factory=threading.Event)
    count: Callable[[Outcome], None] = lambda _: None
    _pruned_at: float = float("-inf")

    def run_round(self) -> int:
        """Deliver the due webhooks; return the number of attempts.

        A thread that waits for a slow receiver does not delay other endpoints: as soon as one thread is free, more
        deliveries are claimed.
        """
        self._prune()
        if not (claimed := self.deliveries.claim(THREADS)):
            return 0
        attempts, until = 0, time.monotonic() + ROUND_SECONDS
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(THREADS, "webhooks") as pool:
            while claimed or running:
                attempts += len(claimed)
                running |= {pool.submit(self.deliver, delivery) for delivery in claimed}
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for ended in done:
                    ended.result()
                is_over = self.stopping.is_set() or time.monotonic() > until
                claimed = [] if is_over else self.deliveries.claim(THREADS - len(running))
        return attempts

    def deliver(self, delivery: ClaimedDelivery) -> None:
        """Make one attempt, and record its outcome."""
        try:
            outcome = self.sender.send(delivery)
        except Exception as error:
            # Otherwise the row would be claimed again indefinitely, without a visible reason.
            logger.exception("the webhook %s could not be sent", delivery.id)
            outcome = Outcome(None, f"it could not be sent ({type(error).__name__})")
        self.count(outcome)
        disabled = self.deliveries.settle(delivery, outcome)
        if outcome.error is not None:
            logger.warning(
                "webhook %s to endpoint %s of %s, attempt %d: %s",
                delivery.event_id,
                delivery.endpoint_id,
                delivery.tenant,
                delivery.token,
                outcome.error,
            )
        if disabled is not None:
            logger.error("webhook endpoint %s of %s is disabled: %s", delivery.endpoint_id, delivery.tenant, disabled)

    def _prune(self) -> None:
        if time.monotonic() - self._pruned_at > PRUNE_SECONDS:
            self.deliveries.prune()
            self._pruned_at = time.monotonic()


def make_webhook_dispatcher(
    settings: WorkerSettings, stopping: threading.Event, count: Callable[[Outcome], None]
) -> WebhookDispatcher:
    """Return the dispatcher on the configured database."""
    sender = WebhookSender(AllowedTargets.parse(settings.webhook_allowed))
    return WebhookDispatcher(Deliveries(Database(settings.database_url)), sender, stopping, count)
