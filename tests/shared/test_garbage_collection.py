"""Imports without garbage collections, and the entry points that import so."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path

import pytest

from shared.garbage_collection import without_collections

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = ("api/__main__.py", "worker/app.py", "serving/vllm_server.py")
"""Entry points of the long-running processes. The trainer's is `worker/libraries.py` (tests/worker/test_libraries.py)."""


@pytest.fixture(autouse=True)
def enabled():
    yield
    gc.enable()


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_inside_and_what_came_is_frozen(collects):
    (gc.enable if collects else gc.disable)()
    with without_collections():
        assert not gc.isenabled()
        came = [{} for _ in range(1000)]
    assert gc.isenabled() is collects
    assert not {id(each) for each in came} & {id(each) for each in gc.get_objects()}


def test_an_import_that_fails_leaves_collections_as_they_were():
    with pytest.raises(ImportError), without_collections():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.parametrize("path", ENTRY_POINTS)
def test_entry_points_import_all_that_is_not_pythons_own_without_collections(path):
    outside = [
        name
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert outside == ["shared.garbage_collection"]
