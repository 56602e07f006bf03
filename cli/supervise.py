"""``python -m cli.supervise CONFIG``: supervisord that stops, with all its programs, when the one who started it dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from supervisor.supervisord import main

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(os.environ.pop("MENS_PARENT_PID", "0")):
            sys.exit("the process that started this one is gone")
    main(["-c", sys.argv[1]])
