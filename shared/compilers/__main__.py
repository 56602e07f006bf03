"""``python -m shared.compilers CONFIG``, within bubblewrap: confines itself, and becomes the compiler.

It reads the code from standard input. Just before it becomes the compiler, it writes ``+`` to the descriptor
``report_fd``; if it cannot become the compiler, it writes the reason. The compiler does not inherit the descriptor, so
that the code cannot make a compiler imitate a failure of the sandbox.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from shared.sandbox import confinement
from shared.sandbox.environment import readable_paths
from shared.sandbox.levels import Limits

LINKERS = (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1"))
"""Dynamic linkers, which the kernel executes first for every dynamically linked program."""


def become_compiler(config: dict[str, Any]) -> None:
    """Confine this process and execute the compiler; never returns.

    Args:
        config: ``command``, ``file``, ``variables`` and ``executables`` of the compiler, ``limits``, ``number`` (at
            random; of its user), ``own_user`` (turn from root into a user), ``program`` (of seccomp, in base64),
            ``report_fd``.
    """
    report = int(config["report_fd"])
    # Closed by a successful exec, so that the parent's read of the report ends.
    os.set_inheritable(report, False)
    try:
        limits = Limits(**config["limits"])
        _close_in(config, limits)
        os.write(report, b"+")
        os.execv(config["command"][0], config["command"])
    except BaseException as error:
        # The parent has no other way to learn why the process never became the compiler.
        os.write(report, f"{type(error).__name__}: {error}"[:1000].encode())
    finally:
        os._exit(1)


def _close_in(config: dict[str, Any], limits: Limits) -> None:
    with os.fdopen(0, "rb", closefd=False) as source:
        text = source.read()
    folder = Path("compiled").absolute()
    folder.mkdir(mode=0o700)
    (folder / config["file"]).write_bytes(text)
    if config["own_user"]:
        uid = confinement.own_uid(config["number"])
        for path in (folder / config["file"], folder):
            os.chown(path, uid, uid)
        confinement.become(uid, read_everything=False)
    os.chdir(folder)
    os.environ.update({"HOME": str(folder), "TMPDIR": str(folder), **config["variables"]})
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for descriptor in range(3, limits.files):
        if descriptor != config["report_fd"]:
            _close(descriptor)
    confinement.limit_server(limits)
    confinement.limit_item(limits, limits.threads)
    executables = [*map(Path, config["executables"]), *LINKERS]
    writable = [folder, Path(os.devnull)]
    confinement.close_in(readable_paths(), writable, base64.b64decode(config["program"]), executables)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass


if __name__ == "__main__":
    become_compiler(json.loads(sys.argv[1]))
