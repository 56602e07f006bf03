"""The state machine of a job.

                      submit
                        │
                        ▼       claim                    finish
       ┌───────────► queued ───────────────► running ──────────────► succeeded
       │ resume         │ ▲                   │ │ │
       │         cancel │ │ requeue           │ │ │ fail
     paused ◄─── pause ─┤ └───────────────────┘ │ └────────────────► failed
       ▲  │             ▼     stop              │ pause_confirmed
       │  └───────► cancelled ◄─────────────────┤
       │   cancel                               │
       └────────────────────────────────────────┘

`cancel` and `pause` of a running job are requests: the row keeps its state, the worker sees the request at its next
heartbeat, stops the trainer, and confirms with `stop` or `pause_confirmed`. `requeue` follows an expired lease or a
retryable failure with attempts left; the control worker or the worker itself does it.
"""

from __future__ import annotations

from enum import StrEnum

from shared.errors import Code, Conflict


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(StrEnum):
    """Activity of a running job."""

    PREFLIGHT = "preflight"
    TRAINING = "training"
    SELF_EVALUATION = "self_evaluation"
    PUBLISHING = "publishing"
    MERGING = "merging"
    EVALUATING = "evaluating"


class Verb(StrEnum):
    CLAIM = "claim"
    REQUEUE = "requeue"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    STOP = "stop"
    PAUSE = "pause"
    PAUSE_CONFIRMED = "pause_confirmed"
    RESUME = "resume"


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: dict[tuple[JobState, Verb], JobState] = {
    (JobState.QUEUED, Verb.CLAIM): JobState.RUNNING,
    (JobState.QUEUED, Verb.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, Verb.PAUSE): JobState.PAUSED,
    (JobState.RUNNING, Verb.REQUEUE): JobState.QUEUED,
    (JobState.RUNNING, Verb.FINISH): JobState.SUCCEEDED,
    (JobState.RUNNING, Verb.FAIL): JobState.FAILED,
    (JobState.RUNNING, Verb.CANCEL): JobState.RUNNING,
    (JobState.RUNNING, Verb.PAUSE): JobState.RUNNING,
    (JobState.RUNNING, Verb.STOP): JobState.CANCELLED,
    (JobState.RUNNING, Verb.PAUSE_CONFIRMED): JobState.PAUSED,
    (JobState.PAUSED, Verb.CANCEL): JobState.CANCELLED,
    (JobState.PAUSED, Verb.RESUME): JobState.QUEUED,
}


def next_state(job_id: str, state: JobState, verb: Verb) -> JobState:
    """Return the state after a verb.

    Raises:
        Conflict: ``JOB_STATE_CONFLICT``; the pair is not in the table.
    """
    try:
        return TRANSITIONS[state, verb]
    except KeyError:
        raise Conflict(
            Code.JOB_STATE_CONFLICT,
            f"The job {job_id} is {state}, so {verb} is not allowed.",
            remedy="Its outcome is final; create a new job instead."
            if state in FINAL
            else "Check the job's state and events; wait until it has finished, or cancel it.",
        ) from None
