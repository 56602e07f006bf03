"""Checks that this machine can run a job: that its run folders and the storage can be written to.

Otherwise, a worker with a bad disk would claim every queued job and fail it within a second.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.artifacts.storage import Storage
from shared.errors import Unavailable
from shared.host import disk_errors, storage_full, storage_unavailable

PROBE_SECONDS = 5.0
"""Time between two checks of a machine that failed one."""
PROBE_BYTES = 64 << 10
MIN_FREE_BYTES = 32 << 20
"""Minimum free space for run folders. An attempt that fails on a full disk deletes its incomplete files, and the probe
file would fit into that space, so probing alone is not enough.
"""
# No content has this digest: the question is sent for the request alone.
ABSENT_BLOB = "0" * 64

logger = logging.getLogger(__name__)


@dataclass
class DiskCheck:
    """The check of one worker.

    Attributes:
        runs_dir: folder of the run folders.
        show: called after each check with its fault.
        fault: fault that the last check found; None if it passed.
    """

    runs_dir: Path
    storage: Storage
    show: Callable[[Unavailable | None], None]
    fault: Unavailable | None = None
    _written: str = ""
    """The place that the last check wrote to; only for the log, because callers see the fault without paths."""

    def wait_until_sound(self, stopping: threading.Event) -> bool:
        """Return True once a check passes; False if the worker is stopped first."""
        while self.find_fault():
            if stopping.wait(PROBE_SECONDS):
                return False
        return True

    def find_fault(self) -> Unavailable | None:
        """Write to both places; return the fault. It is passed to ``show``, and logged when it changes."""
        before, self.fault = self.fault, self._check()
        self.show(self.fault)
        if self.fault and (before is None or before.code != self.fault.code):
            logger.error("this worker takes no job: it cannot write to %s: %s", self._written, self.fault)
        if before and not self.fault:
            logger.info("this worker takes jobs again")
        return self.fault

    def _check(self) -> Unavailable | None:
        self._written = f"the run folders {self.runs_dir} (MENS_RUNS_DIR)"
        try:
            with disk_errors():
                self.runs_dir.mkdir(parents=True, exist_ok=True)
                usage = shutil.disk_usage(self.runs_dir)
                # Some file systems report no figures: total and free are 0.
                if usage.total and usage.free < MIN_FREE_BYTES:
                    raise storage_full()
                with tempfile.NamedTemporaryFile(dir=self.runs_dir, prefix=".probe-") as file:
                    file.write(bytes(PROBE_BYTES))
                    file.flush()
                    # Without it, a network file system may accept the bytes now and report a full disk only at a
                    # job's checkpoint.
                    os.fsync(file.fileno())
                self._written = "the storage (MENS_STORAGE_DIR or MENS_S3_BUCKET)"
                with self.storage.writer() as writer:  # the file is discarded, because it is not committed
                    writer.write(bytes(PROBE_BYTES))
                    writer.finish()
                self.storage.has_blob(ABSENT_BLOB)
        except Unavailable as fault:
            return fault
        except OSError as error:  # e.g. a file is in a folder's place
            return storage_unavailable(os.strerror(error.errno or 0))
        return None
