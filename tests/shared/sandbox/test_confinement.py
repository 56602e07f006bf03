"""The limits that an item observes are the documented ones."""

from __future__ import annotations

import os
import resource

import pytest

from shared.sandbox.client import Sandbox
from shared.sandbox.levels import COMPILE_SECONDS, MAX_OUTPUT_BYTES, MAX_SOURCE_BYTES, Level, Limits
from tests.support.sandboxes import level_parameters

pytestmark = pytest.mark.sandbox

WANTED = {
    "RLIMIT_AS": 2 << 30,
    "RLIMIT_CPU": 121,
    "RLIMIT_FSIZE": 16 << 20,
    "RLIMIT_NOFILE": 64,
    "RLIMIT_CORE": 0,
    "RLIMIT_MEMLOCK": 0,
}
SOURCE = "import resource\ndef grade(sample, item): return min(resource.getrlimit(getattr(resource, item['name'])))"


@pytest.mark.parametrize("level", level_parameters())
def test_an_item_has_the_limits_that_are_documented(level: Level) -> None:
    with Sandbox(level) as sandbox:
        for name, value in WANTED.items():
            _, hard = resource.getrlimit(getattr(resource, name))
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            assert sandbox.grade(SOURCE, {}, {"name": name}) == allowed, name
        if level == "bubblewrap" or os.geteuid() == 0:
            assert sandbox.grade(SOURCE, {}, {"name": "RLIMIT_NPROC"}) == 64


def test_the_limits_are_openais() -> None:
    limits = Limits()
    assert (limits.wall_seconds, limits.memory_bytes, limits.folder_bytes) == (120, 2 << 30, 1 << 30)
    assert (MAX_SOURCE_BYTES, MAX_OUTPUT_BYTES) == (256_000, 65_536)
    assert limits.tmpfs_bytes == 1 << 30
    assert limits.wall_seconds > COMPILE_SECONDS


@pytest.mark.parametrize("level", level_parameters())
def test_an_item_cannot_raise_its_limits(level: Level) -> None:
    source = """
import resource
def grade(sample, item):
    raised = 0
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
        try:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            raised += 1
        except (OSError, ValueError):
            continue
    return raised
"""
    with Sandbox(level) as sandbox:
        assert sandbox.grade(source, {}, {}) == 0
