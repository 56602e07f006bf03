"""``python -m cli.supervise CONFIG``: supervisord that stops, with all its programs, when the one who started it dies."""

from __future__ import annotations

import os
import signal
import sys

from supervisor.supervisord import main

from shared.lifeline import die_with_parent

if __name__ == "__main__":
    if parent := os.environ.pop("MENS_PARENT_PID", None):
        die_with_parent(int(parent), signal.SIGTERM)
    main(["-c", sys.argv[1]])
