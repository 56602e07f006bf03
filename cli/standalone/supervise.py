"""``python -m cli.standalone.supervise CONFIG``: supervisord that stops, with all its programs, when the process that
started it dies. If it is killed itself, its programs are killed too: nothing would restart them, and they would hold
their ports.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from supervisor.loggers import Handler
from supervisor.supervisord import main

from shared.host import exit_with_parent


def print_once() -> Callable[[Handler], None]:
    """Return the error handler of a log that cannot be written: it prints each error once.

    supervisord prints a traceback for each line instead, thousands of them while a disk is full.
    """
    printed = set[str]()

    def print_error(_: Handler) -> None:
        error = str(sys.exc_info()[1])
        if error not in printed:
            printed.add(error)
            print(f"A log cannot be written: {error}. Its lines are lost until it can.", file=sys.stderr)

    return print_error


if __name__ == "__main__":
    if parent := os.environ.pop("MENS_PARENT_PID", None):
        exit_with_parent(int(parent), signal.SIGTERM)
    # Runs in each program before it starts. When a program ends, its own processes end too.
    os.register_at_fork(after_in_child=partial(exit_with_parent, os.getpid()))
    Handler.handleError = print_once()
    main(["-c", sys.argv[1]])
