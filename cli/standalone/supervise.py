"""``python -m cli.standalone.supervise CONFIG``: supervisord that stops, with all its programs, when the process that
started it dies. If it is killed itself, its programs are killed too: nothing would restart them, and they would hold
their ports.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from supervisor.supervisord import main

from shared.host import exit_with_parent

if __name__ == "__main__":
    if parent := os.environ.pop("MENS_PARENT_PID", None):
        exit_with_parent(int(parent), signal.SIGTERM)
    # Runs in each program before it starts. The processes of a program end with it on their own.
    os.register_at_fork(after_in_child=partial(exit_with_parent, os.getpid()))
    main(["-c", sys.argv[1]])
