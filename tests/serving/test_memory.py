"""How much memory a process may have, under each way a kernel bounds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.memory import allowed_memory

GIB = 1 << 30
UNLIMITED = str((1 << 63) - 4096)


def machine(root: Path, membership: str, limits: dict[str, str]) -> int:
    """What is allowed on a machine of 8 GiB whose control groups say this."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal:        8388608 kB\nMemFree:          100 kB\n")
    (root / "proc" / "self" / "cgroup").write_text(membership)
    for name, text in limits.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return allowed_memory(root / "proc", root / "cgroup")


CASES = {
    "no groups": ("", {}, 8 * GIB),
    "unified, unlimited": ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "max"}, 8 * GIB),
    "unified": ("0::/a/b\n", {"a/b/memory.max": str(2 * GIB), "a/memory.max": "max"}, 2 * GIB),
    "unified, a group around it": (
        "0::/a/b\n",
        {"a/b/memory.max": str(6 * GIB), "a/memory.max": str(3 * GIB)},
        3 * GIB,
    ),
    "unified, in a container": ("0::/\n", {"memory.max": str(GIB)}, GIB),
    "unified, a path of outside": ("0::/../../kubepods/x\n", {"memory.max": str(GIB)}, GIB),
    "legacy": ("5:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(GIB)}, GIB),
    "legacy, two controllers": ("4:cpu,memory:/a\n", {"memory/memory.limit_in_bytes": str(GIB)}, GIB),
    "legacy, unlimited": ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": UNLIMITED}, 8 * GIB),
    "more than there is": ("0::/a\n", {"a/memory.max": str(64 * GIB)}, 8 * GIB),
    "of another controller": ("5:cpu:/x\n", {"memory/x/memory.limit_in_bytes": str(GIB)}, 8 * GIB),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_limit_counts(name, tmp_path):
    membership, limits, allowed = CASES[name]
    assert machine(tmp_path, membership, limits) == allowed


def test_this_machine_has_some():
    assert 1 << 28 < allowed_memory() < 1 << 50
