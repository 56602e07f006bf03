"""A replica's name stands for its address wherever that is not told."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from shared.replicas import replica_name

URLS = ("http://10.1.2.3:8001", "http://gpu-7.internal:8001")


def test_names_are_short_and_differ_and_stay() -> None:
    names = [replica_name(url) for url in URLS]
    assert names == ["replica-7ccdd4ba", "replica-c2caa2f7"]


@given(st.text())
def test_nothing_of_an_address_is_in_its_name(url: str) -> None:
    assert re.fullmatch("replica-[0-9a-f]{8}", replica_name(url))
