"""The prefix cache's salt: one for each tenant, and never the caller's own in plain."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import prefix_salt
from api.prefix_salt import FIELD, salted
from shared.errors import InvalidRequest

SECRET = "serving-key"
TEXTS = st.text(min_size=1, max_size=20)


def salt(tenant: str, own: str | None = None, secret: str = SECRET) -> str:
    body: dict[str, Any] = {"model": "m", "messages": [1]} | ({FIELD: own} if own is not None else {})
    before = dict(body)
    made = salted(body, secret, tenant)
    assert body == before, "the caller's is left as it is"
    assert {**made, FIELD: None} == {**body, FIELD: None}
    return str(made[FIELD])


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=2, max_size=6, unique=True))
def test_same_tenant_and_own_salt_same_salt_and_never_otherwise(askers: list[tuple[str, str | None]]) -> None:
    for one, other in itertools.product(askers, repeat=2):
        assert (salt(*one) == salt(*other)) == (one == other)


def test_the_callers_own_is_nowhere_in_it() -> None:
    guess = salt("acme")
    assert salt("other", guess) != guess, "knowing a tenant's salt opens nothing"
    assert "sesame" not in salt("acme", "sesame")
    assert salt("acme", secret="another") != guess


def test_vllm_takes_it() -> None:
    assert len(salt("a" * 63, "x" * 10_000)) <= 128
    assert salt("acme").isalnum()


@pytest.mark.parametrize("own", ["", 3, ["a"], {}, False])
def test_a_salt_that_is_no_text(own: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        salted({FIELD: own}, SECRET, "acme")
    assert caught.value.param == FIELD


def test_nothing_that_callers_make_up_is_kept() -> None:
    kept = prefix_salt._own_salt.cache_info().currsize
    for number in range(100):
        salt("acme", f"own {number}")
    assert prefix_salt._own_salt.cache_info().currsize <= kept + 1
