"""Which process of a parallel run gets which tests: those that share slow servers go to one, and the longest go first."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/system/", "tests/vllm/", "tests/console/")
"""Folders whose files share an installation or a replica for the whole session: started twice, it would cost a minute."""
ALONE = (
    "tests/system/test_real_model.py",
    "tests/system/test_real_demo.py",
    "tests/system/test_real_preferences.py",
    "tests/system/test_real_bench.py",
    "tests/system/test_base_families.py",
    "tests/system/test_live_checkpoints.py",
    "tests/system/test_hostile.py",
    "tests/system/test_marker_adapters.py",
)
"""Their files that start servers of their own."""
LONGEST = ("tests/system/", "tests/bench/test_smoke.py", "tests/vllm/", "tests/console/", *ALONE)
"""In the order in which they are started."""


def unit_of(path: str) -> str:
    """What a file's tests stay together with, by its path from the repository's root: a folder, or the file itself."""
    folders = [folder for folder in TOGETHER if path.startswith(folder) and path not in ALONE]
    return folders[0] if folders else path


def rank(path: str) -> int:
    """The place of a file's unit among the longest; all others come after them."""
    unit = unit_of(path)
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


class ServerScheduling(LoadFileScheduling):
    """A file goes to one process, and so do all files of a folder that share their servers."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])
