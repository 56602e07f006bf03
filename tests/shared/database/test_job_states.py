"""Every pair of state and operation against a table written by hand, and the diagram."""

from __future__ import annotations

import re

import pytest

from shared.database import job_states as jobstate
from shared.database.job_states import FINAL, TRANSITIONS, JobState, Verb, next_state
from shared.errors import Code, Conflict

VERBS = ("claim", "requeue", "finish", "fail", "cancel", "stop", "pause", "pause_confirmed", "resume")
TABLE = {
    #             claim      requeue   finish       fail      cancel       stop         pause      confirmed  resume
    "queued":    ("running", None,     None,        None,     "cancelled", None,        "paused",  None,      None),
    "running":   (None,      "queued", "succeeded", "failed", "running",   "cancelled", "running", "paused",  None),
    "paused":    (None,      None,     None,        None,     "cancelled", None,        None,      None,      "queued"),
    "succeeded": (None,      None,     None,        None,     None,        None,        None,      None,      None),
    "failed":    (None,      None,     None,        None,     None,        None,        None,      None,      None),
    "cancelled": (None,      None,     None,        None,     None,        None,        None,      None,      None),
}  # fmt: skip
PAIRS = [(state, verb, after) for state, row in TABLE.items() for verb, after in zip(VERBS, row, strict=True)]


def test_table_has_every_pair() -> None:
    assert set(TABLE) == set(JobState)
    assert set(VERBS) == set(Verb)
    assert len(PAIRS) == 54


@pytest.mark.parametrize(("state", "verb", "after"), PAIRS)
def test_transition_of_every_pair(state: str, verb: str, after: str | None) -> None:
    if after is not None:
        assert next_state("ftjob-1", JobState(state), Verb(verb)) is JobState(after)
        return
    with pytest.raises(Conflict) as caught:
        next_state("ftjob-1", JobState(state), Verb(verb))
    assert caught.value.code is Code.JOB_STATE_CONFLICT
    assert all(part in caught.value.message for part in ("ftjob-1", state, verb))
    assert caught.value.remedy


def test_final_states_are_those_that_no_verb_leaves() -> None:
    assert {state for state in JobState if not any(state is before for before, _ in TRANSITIONS)} == FINAL
    assert {"succeeded", "failed", "cancelled"} == FINAL


def test_every_state_can_be_reached_from_queued() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(JobState)


def test_every_unfinished_job_can_be_cancelled() -> None:
    assert {before for before, verb in TRANSITIONS if verb is Verb.CANCEL} == set(JobState) - FINAL


def test_drawing_names_every_state_and_verb() -> None:
    words = set(re.findall(r"[a-z_]+", (jobstate.__doc__ or "").split("`cancel` and")[0]))
    assert set(JobState) <= words
    assert set(Verb) <= words  # fails while the drawing has no edge for `pause` (queued to paused)
