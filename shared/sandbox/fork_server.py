"""Trusted process of a sandbox: imports packages for graders and forks a process for each grader. It never runs their
code.

Its standard input is a socket of its parent. A message on it says which packages to import, and passes the end of a
channel, over which the new process gets the grader's source, then its items. The server ends when that socket is
closed.
"""

from __future__ import annotations

import array
import gc
import json
import os
import signal
import socket
import subprocess
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.sandbox import seccomp
from shared.sandbox.environment import open_to_others, readable_paths
from shared.sandbox.grader_process import Inheritance, serve_items
from shared.sandbox.levels import Limits
from shared.sandbox.packages import PACKAGES, import_all

_MAX_REQUEST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a process for a grader.

    Attributes:
        packages: packages to import before the process is forked.
        number: random number that determines its folder and its user.
        disk: the number of its folder's file system, if each has one.
        channel: channel on which its source will arrive.
    """

    packages: list[str]
    number: int
    disk: int
    channel: socket.socket


def serve(config: dict[str, Any]) -> None:
    """Fork for each request until the socket is closed.

    Args:
        config: ``level``, and ``limits`` of an item.
    """
    control = socket.socket(fileno=os.dup(0))
    # Output of this process is not read, and no fork may hold the socket.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(tempfile.mkdtemp(prefix="mens-sandbox-"))
    children: set[int] = set()
    try:
        # Graders are other users: each may enter its own folder below, and list no other.
        folder.chmod(0o711)
        inheritance = _make_inheritance(config, folder)
        control.send(json.dumps({"folder": str(folder)}).encode())
        while request := _next_request(control):
            # Also reaps those that have ended, which would stay as zombies.
            children = {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0] == 0}
            children.add(_fork(inheritance, control, request))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        # Files of a grader may be nested deeper than Python's own removal supports.
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def _make_inheritance(config: dict[str, Any], folder: Path) -> Inheritance:
    readable = tuple(readable_paths())
    is_root, in_namespaces = os.geteuid() == 0, config["level"] == "bubblewrap"
    # Tasks are counted by user: with root each grader gets a user of its own, and in namespaces no others exist.
    threads = is_root or in_namespaces
    return Inheritance(
        limits=Limits(**config["limits"]),
        readable=readable,
        folder=None if in_namespaces else folder,
        threads=threads,
        own_user=is_root,
        read_everything=is_root and not in_namespaces and not all(map(open_to_others, readable)),
        item_program=seccomp.item_program(threads=threads),
        server_program=seccomp.server_program(),
    )


def _next_request(control: socket.socket) -> Request | None:
    content, ancillary, _, _ = control.recvmsg(_MAX_REQUEST_BYTES, socket.CMSG_SPACE(4))
    if not content:
        return None
    message = json.loads(content)
    descriptors = array.array("i", ancillary[0][2])
    return Request(message["packages"], message["number"], message["disk"], socket.socket(fileno=descriptors[0]))


def _fork(inheritance: Inheritance, control: socket.socket, request: Request) -> int:
    # Imported here and not in the fork, so that later forks have the packages already.
    import_all(PACKAGES.intersection(request.packages))
    # A collection in the fork would otherwise write to, and so copy, the pages that it shares with this process.
    gc.freeze()
    parent = os.getpid()
    if pid := os.fork():
        request.channel.close()
        return pid
    # From here on the function must not return: cleanup belongs to the parent.
    try:
        control.close()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        serve_items(inheritance, request.channel, parent, request.number, request.disk)
    except BaseException:
        # This is the child of a fork: an error must not continue in the parent's code.
        traceback.print_exc()
    finally:
        os._exit(0)
