"""How much memory this process may have: the machine's, or less where a control group bounds it (a container, a unit)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNIFIED_LIMIT, LEGACY_LIMIT = "memory.max", "memory.limit_in_bytes"


def allowed_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process and its children may have together.

    Args:
        proc: where the kernel tells of processes.
        groups: where control groups are mounted, the unified tree or the older one with a folder a controller.
    """
    return min([_machine_bytes(proc), *_group_limits(proc, groups)])


def _machine_bytes(proc: Path) -> int:
    facts = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    return int(facts["MemTotal"].split()[0]) * 1024


def _group_limits(proc: Path, groups: Path) -> Iterator[int]:
    """Limits of this process's group and of every group around it."""
    for folder, name in _group_folders(proc, groups):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue  # the root has none, and a container does not see the groups around it
        if text.isdigit():  # "max" where there is no limit
            yield int(text)


def _group_folders(proc: Path, groups: Path) -> Iterator[tuple[Path, str]]:
    membership = proc / "self" / "cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, name = groups, UNIFIED_LIMIT
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", LEGACY_LIMIT
        else:
            continue
        group = PurePosixPath(path)
        for one in (group, *group.parents):
            yield root / one.relative_to("/"), name
