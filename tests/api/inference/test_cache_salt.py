"""Cache salts: one for each tenant, and the caller's own is never sent in plain text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference import cache_salt
from api.inference.cache_salt import FIELD, with_cache_salt
from shared.errors import InvalidRequest

SECRET = "serving-key"
TEXTS = st.text(min_size=1, max_size=20)


def salt(tenant: str, own: str | None = None, secret: str = SECRET) -> str:
    body: dict[str, Any] = {"model": "m", "messages": [1]} | ({FIELD: own} if own is not None else {})
    before = dict(body)
    made = with_cache_salt(body, secret, tenant)
    assert body == before, "the caller's body is not changed"
    assert {**made, FIELD: None} == {**body, FIELD: None}
    return str(made[FIELD])


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=2, max_size=6, unique=True))
def test_salts_are_equal_only_for_the_same_tenant_and_own_salt(requests: list[tuple[str, str | None]]) -> None:
    salts = [salt(*request) for request in requests]
    assert salts == [salt(*request) for request in requests]
    assert len(set(salts)) == len(requests)


def test_salt_does_not_reveal_the_callers_own() -> None:
    guess = salt("acme")
    assert salt("other", guess) != guess, "knowing a tenant's salt gives no access to its cache"
    assert "sesame" not in salt("acme", "sesame")
    assert salt("acme", secret="another") != guess


def test_salt_has_a_length_and_form_that_vllm_takes() -> None:
    assert len(salt("a" * 63, "x" * 10_000)) <= 128
    assert salt("acme").isalnum()


@pytest.mark.parametrize("own", ["", 3, ["a"], {}, False])
def test_own_salt_that_is_not_a_text_is_refused(own: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_cache_salt({FIELD: own}, SECRET, "acme")
    assert caught.value.param == FIELD


def test_callers_own_salts_are_not_cached() -> None:
    kept = cache_salt._tenant_salt.cache_info().currsize
    for number in range(100):
        salt("acme", f"own {number}")
    assert cache_salt._tenant_salt.cache_info().currsize <= kept + 1
