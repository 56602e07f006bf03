"""``python -m cli.standalone.supervise CONFIG``: supervisord that stops, with all its programs, when the process that started
it dies.
"""

from __future__ import annotations

import os
import signal
import sys

from supervisor.supervisord import main

from shared.host import exit_with_parent

if __name__ == "__main__":
    if parent := os.environ.pop("MENS_PARENT_PID", None):
        exit_with_parent(int(parent), signal.SIGTERM)
    main(["-c", sys.argv[1]])
