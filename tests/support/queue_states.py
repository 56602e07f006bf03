"""States of a queue, for tests of the scheduling rule and its forecast."""

from __future__ import annotations

from hypothesis import strategies as st

from shared.scheduling.fair_queue import FairQueue
from shared.scheduling.types import HIGHEST_PRIORITY, LOWEST_PRIORITY, Allowance, QueuedJob, QueueState, Share

HOUR = 3600.0
NOW = 1_000_000.0

tenants = st.sampled_from(["a", "b", "c"])
seconds = st.integers(0, 100_000).map(float)


@st.composite
def states(draw: st.DrawFn) -> QueueState:
    jobs = draw(
        st.lists(
            st.builds(
                QueuedJob,
                st.just(""),
                tenants,
                seconds.map(lambda ago: NOW - ago),
                st.integers(LOWEST_PRIORITY, HIGHEST_PRIORITY),
                st.integers(1, 500).map(float),
                ready_at=st.sampled_from([0.0, 0.0, NOW + 60]),
            ),
            max_size=8,
        )
    )
    queued = [
        QueuedJob(f"j{index}", job.tenant, job.queued_at, job.priority, job.hold, ready_at=job.ready_at)
        for index, job in enumerate(jobs)
    ]
    shares = draw(st.dictionaries(tenants, st.builds(Share, seconds, st.integers(0, 3), st.none() | seconds)))
    limits = st.builds(Allowance, st.none() | st.integers(0, 3), st.none() | st.integers(0, 900).map(float))
    return QueueState(NOW, queued, shares, draw(st.dictionaries(tenants, limits)))


def drain(state: QueueState, now: float = NOW) -> list[str]:
    queue, taken = FairQueue(state), []
    while job := queue.next(now):
        queue.start(job)
        taken.append(job.id)
    return taken
