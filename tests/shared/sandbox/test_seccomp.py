"""Refused system calls, each made with meaningless arguments: the call is refused before the arguments are read."""

from __future__ import annotations

import ctypes
import errno
import json
import platform
import subprocess
import sys

import pytest

from shared.errors import InvalidRequest
from shared.sandbox.client import Sandbox
from shared.sandbox.levels import Level
from shared.sandbox.seccomp import load_library
from tests.support.sandboxes import level_parameters

pytestmark = pytest.mark.sandbox

NAMED = [
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "userfaultfd",
    "unshare",
    "setns",
    "mount",
    "pidfd_getfd",
    "pidfd_open",
    "pidfd_send_signal",
    "execve",
    "execveat",
    "shmget",
    "shmat",
    "shmctl",
    "semget",
    "semctl",
    "msgget",
    "msgctl",
    "setsid",
    "setpgid",
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
]
OF_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="it is of x86-64")
CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
minus = [ctypes.c_long(-1)] * 6
def call(number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(ctypes.c_long(number), *(arguments or minus))
    return 0 if answer >= 0 else ctypes.get_errno()
"""
COUNT = (
    CALL
    + """
def grade(sample, item):
    found = {name: call(number) for name, number in item["numbers"].items()}
    assert set(found.values()) == {item["errno"]}, found
    return len(found)
"""
)


def numbers(names: list[str]) -> dict[str, int]:
    library = load_library()
    found = {name: library.seccomp_syscall_resolve_name(name.encode()) for name in names}
    return {name: number for name, number in found.items() if number >= 0}


def errno_unconfined(name: str, number: int) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", f"{CALL}\nprint(call({number}))"], capture_output=True, text=True, check=True
    )
    return int(json.loads(ran.stdout))


def test_without_a_sandbox_the_kernel_looks_at_the_arguments() -> None:
    """So that a refusal within is seccomp's. A few the kernel may refuse to everyone."""
    refused = [
        name for name, number in numbers(NAMED).items() if errno_unconfined(name, number) in (errno.EPERM, errno.ENOSYS)
    ]
    assert len(refused) < len(NAMED) / 4, refused


@pytest.mark.parametrize("level", level_parameters())
def test_what_is_named_is_not_permitted(level: Level) -> None:
    asked = numbers(NAMED)
    with Sandbox(level) as sandbox:
        assert sandbox.grade(COUNT, {}, {"numbers": asked, "errno": errno.EPERM}) == len(asked) >= len(NAMED) - 2


@pytest.mark.parametrize("level", level_parameters())
def test_system_calls_that_are_not_named_are_missing(level: Level) -> None:
    """So a call that a later kernel adds is refused; and the C library starts threads without clone3."""
    asked = numbers(["clone3", "quotactl", "lookup_dcookie", "fanotify_init", "landlock_create_ruleset", "seccomp"])
    asked["of a later kernel"] = 1_000
    with Sandbox(level) as sandbox:
        assert sandbox.grade(COUNT, {}, {"numbers": asked, "errno": errno.ENOSYS}) == len(asked)


@pytest.mark.parametrize("level", level_parameters())
@pytest.mark.parametrize(
    "flag",
    [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00010000 | 0x10000000],
)
def test_no_process_makes_a_namespace(level: Level, flag: int) -> None:
    source = f"{CALL}\ndef grade(sample, item): return call(item['clone'], *[ctypes.c_long(n) for n in (item['flag'], 0, 0, 0, 0)])"
    with Sandbox(level) as sandbox:
        item = {"clone": numbers(["clone"])["clone"], "flag": flag | 17}
        assert sandbox.grade(source, {}, item) in (errno.EPERM, errno.ENOSYS)


@OF_X86
@pytest.mark.parametrize("level", level_parameters())
@pytest.mark.parametrize(
    "way",
    [
        # getpid of 32-bit programs: mov eax, 20; int 0x80; ret
        (
            "import mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
            "getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))\ngetpid()"
        ),
        # getpid of the x32 architecture
        "call(0x40000000 | 39)",
    ],
)
def test_calls_of_another_architecture_end_the_item(level: Level, way: str) -> None:
    indented = way.replace("\n", "\n    ")
    source = f"{CALL}\ndef grade(sample, item):\n    {indented}\n    return 1"
    with Sandbox(level) as sandbox, pytest.raises(InvalidRequest, match="SIGSYS"):
        sandbox.grade(source, {}, {})


def test_a_library_that_is_missing_is_an_error_that_can_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, **_options: object) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(OSError, match=r"libseccomp\.so\.2"):
        load_library()
