"""Runs modules as ``python -m`` would, each in a fork of this process: ``python -m bench.harness.fork_server``.

Requests are lines of JSON on standard input: the names of modules to import, which get no response; or a module,
arguments, environment, and files for its output and its errors, for which the exit code comes back as a line. The
process only imports the requested modules before it forks: autograd, tokenizers and Arrow start threads when they are
first used, and a thread does not survive a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any, NoReturn

from shared.host import exit_with_parent


def main() -> None:
    """Entry point: serve requests until standard input ends."""
    exit_with_parent(int(os.environ["MENS_BENCH_PARENT"]))
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that output of libraries does not mix with the exit codes
    for line in sys.stdin:
        request = json.loads(line)
        if "preloaded" in request:
            for module in request["preloaded"]:
                importlib.import_module(module)
            continue
        server, child = os.getpid(), os.fork()
        if child == 0:
            run_module(request, server)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=responses, flush=True)


def run_module(request: dict[str, Any], server: int) -> NoReturn:
    """Run one module in this process, and end the process with its exit code."""
    exit_with_parent(server)
    for descriptor, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    # All of it, because the server may be older than the bench.
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["arguments"]]
    code: object = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):  # `sys.exit` with a message
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
