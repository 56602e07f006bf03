"""Test doubles that the tests of several tiers use."""

from __future__ import annotations

from shared.queue import JobQueue


class FakeJobQueue(JobQueue):
    """A job queue that records the enqueued jobs and sends no message."""

    def __init__(self) -> None:
        self.enqueued: list[str] = []

    def enqueue(self, job_id: str) -> bool:
        self.enqueued.append(job_id)
        return True
