"""Everything in a JSON column can be stored and returned; values that both databases accept are unchanged."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.database.attempt_failures import MAX_FAILURES
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.tables.storable import to_json
from shared.errors import ArtifactInvalid, Code
from tests.support.builders import submission

ANY_TEXT = st.text(st.characters())
"""With NUL and halves of surrogate pairs."""
SOUND_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        text | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    )


@given(values(SOUND_TEXT))
def test_sound_values_are_unchanged(value: Any) -> None:
    assert to_json(value) == json.dumps(value)


@given(values(ANY_TEXT))
def test_every_value_can_be_read_and_encoded(value: Any) -> None:
    stored = json.loads(to_json(value))
    json.dumps(stored, ensure_ascii=False).encode()
    assert "\\u0000" not in to_json(value).replace("\\\\", "")


def test_error_with_half_of_a_surrogate_pair_ends_the_job_at_once(jobs: Jobs, leases: Leases) -> None:
    """The write failed before, so the job was tried again until its attempts were exhausted."""
    assert MAX_FAILURES > 1
    lease = leases.claim(jobs.submit(submission())[0].id, "worker")
    assert lease
    name = "layer.\ud800.weight\0"
    refusal = ArtifactInvalid(Code.ADAPTER_IMPORT_INCOMPLETE, f"{name} is missing.", param=name, details={name: [name]})
    failed = leases.fail(lease, refusal)
    assert failed.state is JobState.FAILED
    error = jobs.get(failed.id).error
    assert error is not None
    assert error["code"] == Code.ADAPTER_IMPORT_INCOMPLETE
    json.dumps(error, ensure_ascii=False).encode()
    assert "layer." in jobs.events(failed.id)[-1].message
