"""Attempts to break out: functions whose own source is sent in as a grader. One that returns true has succeeded.

A refusal shows as an ``OSError``, a ``MemoryError``, a ``RuntimeError`` (no thread) or a killed process; anything else
is a fault of the attack. Without a sandbox each attack succeeds (`tests/shared/sandbox/test_attacks.py`), so a refusal
is an effect of the sandbox.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

Target = dict[str, Any]
"""Targets of attacks: ``secret`` (a file), ``folder``, ``port`` (TCP and UDP), ``unix`` and ``abstract`` (sockets),
``pid`` (of the process outside), ``variables`` (names in its environment).
"""


def read_system_file(_target: Target) -> bool:
    with open("/etc/passwd") as file:
        return bool(file.read())


def read_file(target: Target) -> bool:
    with open(target["secret"]) as file:
        return bool(file.read())


def list_folder(target: Target) -> bool:
    import os

    return bool(os.listdir(target["folder"]))


def read_process(target: Target) -> bool:
    with open(f"/proc/{target['pid']}/environ", "rb") as file:
        return bool(file.read())


def read_environment(target: Target) -> bool:
    import os

    return any(name in os.environ for name in target["variables"])


def write_outside(target: Target) -> bool:
    with open(target["folder"] + "/written", "w") as file:
        return file.write("x") == 1


def truncate_file(target: Target) -> bool:
    import os

    os.truncate(target["secret"], 3)
    return True


def change_mode(target: Target) -> bool:
    import os

    os.chmod(target["secret"], 0o640)
    return True


def link_file(target: Target) -> bool:
    import os

    os.symlink(target["secret"], "link")
    with open("link") as file:
        return bool(file.read())


def connect_tcp(target: Target) -> bool:
    import socket

    return bool(socket.create_connection(("127.0.0.1", target["port"]), 1))


def send_udp(target: Target) -> bool:
    import socket

    return bool(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", target["port"])))


def connect_unix(target: Target) -> bool:
    import socket

    socket.socket(socket.AF_UNIX).connect(target["unix"])
    return True


def connect_abstract(target: Target) -> bool:
    import socket

    socket.socket(socket.AF_UNIX).connect("\0" + target["abstract"])
    return True


def set_up_io_uring(_target: Target) -> bool:
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    # 425 is io_uring_setup everywhere. A refusal because of unreadable memory does not come from a sandbox.
    if libc.syscall(425, 8, None) < 0 and ctypes.get_errno() in (1, 38):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


def fork(_target: Target) -> bool:
    import os

    for _ in range(100):
        if not os.fork():
            os._exit(0)
    return True


def start_threads(_target: Target) -> bool:
    import threading

    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(200)]
    try:
        for thread in threads:
            thread.start()
    finally:
        stop.set()
    return True


def take_memory(_target: Target) -> bool:
    import mmap

    return len(mmap.mmap(-1, 3 << 30)) > 0


def fill_disk(_target: Target) -> bool:
    import time

    for number in range(120):
        with open(f"filling{number}", "wb") as file:
            file.write(bytes(1 << 20))
    time.sleep(0.1)
    return True


def hide_files(_target: Target) -> bool:
    import os

    os.mkdir("hidden", 0o300)  # writable but not listable, so that its content is not measured
    return os.path.isdir("hidden")


def hide_files_by_mask(_target: Target) -> bool:
    import os

    os.umask(0o400)
    return True


def open_files(_target: Target) -> bool:
    return len([open("/dev/null") for _ in range(100)]) == 100


def execute(_target: Target) -> bool:
    import os

    # Descriptor 3 is where the result is expected.
    os.execv("/bin/sh", ["sh", "-c", "echo '{\"score\": 1.0}' >&3"])
    return False


def signal_process(target: Target) -> bool:
    import os

    os.kill(target["pid"], 0)
    return True


def signal_parent(_target: Target) -> bool:
    import os

    os.kill(os.getppid(), 0)
    return True


def own_signals_of_another(target: Target) -> bool:
    import fcntl

    with open("/dev/null") as file:
        fcntl.fcntl(file, 8, target["pid"])  # F_SETOWN: input on the file signals the process
    return True


def trace_parent(_target: Target) -> bool:
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, os.getppid(), 0, 0) < 0:  # PTRACE_SEIZE
        raise OSError(ctypes.get_errno(), "ptrace")
    return True


def leave_group(_target: Target) -> bool:
    import os

    os.setpgid(0, 0)
    return True


def leave_session(_target: Target) -> bool:
    import os

    os.setsid()
    return True


def use_inherited_files(_target: Target) -> bool:
    import os

    for descriptor in range(4, 1024):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        return True
    return False


def keep_memory_of_its_own(_target: Target) -> bool:
    import os

    return os.memfd_create("kept") > 0


def share_memory(_target: Target) -> bool:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    identifier = libc.shmget(0, 4096, 0o1600)
    if identifier < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(identifier, 0, None)
    return True


ATTACKS: tuple[Callable[[Target], bool], ...] = (
    read_system_file, read_file, list_folder, read_process, read_environment, write_outside, truncate_file, change_mode, link_file,
    connect_tcp, send_udp, connect_unix, connect_abstract, set_up_io_uring, fork, start_threads, take_memory, fill_disk,
    hide_files, hide_files_by_mask, open_files, execute, signal_process, signal_parent, own_signals_of_another, trace_parent, leave_group, leave_session, use_inherited_files,
    keep_memory_of_its_own, share_memory,
)  # fmt: skip


def source_of(attack: Callable[[Target], bool]) -> str:
    """Return the source of a grader that tries an attack: its score is 1 when it succeeded, 0 when it was refused."""
    body = textwrap.dedent(inspect.getsource(attack))
    return f"""from __future__ import annotations
{body}
def grade(sample, item):
    try:
        return float({attack.__name__}(item))
    except (OSError, MemoryError, RuntimeError):
        return 0.0
"""
