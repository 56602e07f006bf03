"""Names of replicas, which replace their addresses for callers who may not see them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from shared.replicas import replica_name

URLS = ("http://10.1.2.3:8001", "http://gpu-7.internal:8001")


def test_replica_names_are_stable() -> None:
    names = [replica_name(url) for url in URLS]
    assert names == ["replica-7ccdd4ba", "replica-c2caa2f7"]


@given(st.text())
def test_replica_name_does_not_contain_the_address(url: str) -> None:
    assert re.fullmatch("replica-[0-9a-f]{8}", replica_name(url))
