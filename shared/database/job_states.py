"""The one state machine of a job.

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
heartbeat, stops the engine, and confirms with `stop` or `pause_confirmed`. `requeue` is a lost lease or a retryable
failure with attempts left; the sweeper or the worker itself does it.
"""

from __future__ import annotations

from enum import StrEnum

from shared.errors import Code, Conflict


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Stage(StrEnum):
    """What a running job is doing."""

    PREFLIGHT = "preflight"
    TRAINING = "training"
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


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

TRANSITIONS: dict[tuple[State, Verb], State] = {
    (State.QUEUED, Verb.CLAIM): State.RUNNING,
    (State.QUEUED, Verb.CANCEL): State.CANCELLED,
    (State.QUEUED, Verb.PAUSE): State.PAUSED,
    (State.RUNNING, Verb.REQUEUE): State.QUEUED,
    (State.RUNNING, Verb.FINISH): State.SUCCEEDED,
    (State.RUNNING, Verb.FAIL): State.FAILED,
    (State.RUNNING, Verb.CANCEL): State.RUNNING,
    (State.RUNNING, Verb.PAUSE): State.RUNNING,
    (State.RUNNING, Verb.STOP): State.CANCELLED,
    (State.RUNNING, Verb.PAUSE_CONFIRMED): State.PAUSED,
    (State.PAUSED, Verb.CANCEL): State.CANCELLED,
    (State.PAUSED, Verb.RESUME): State.QUEUED,
}


def next_state(job_id: str, state: State, verb: Verb) -> State:
    """State after a verb.

    Raises:
        Conflict: ``JOB_STATE_CONFLICT``; the pair is not in the table.
    """
    try:
        return TRANSITIONS[state, verb]
    except KeyError:
        raise Conflict(
            Code.JOB_STATE_CONFLICT,
            f"The job {job_id} is {state}, so it cannot take the verb {verb}.",
            remedy=_remedy(state),
        ) from None


def _remedy(state: State) -> str:
    if state in FINAL:
        return "Its outcome stands; create a new job instead."
    return "Look at the job's state and events; wait for it, or cancel it."
