"""Peak memory of this process."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Return the peak resident set of this program alone; in ru_maxrss, Linux includes the memory of the parent
    process.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
