"""System calls that code inside may make: a list of allowed ones, compiled by libseccomp to the kernel's format.

libseccomp is the library that systemd, Docker and Debian's apt use (`libseccomp.so.2`, package libseccomp2, LGPL-2.1);
six of its functions are called here. A program is made once and set in every process by one call, because making it
takes milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import os

_KILL_PROCESS, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_ATTRIBUTE_BAD_ARCHITECTURE, _ATTRIBUTE_OPTIMIZE = 2, 8
# Each system call passes a few comparisons of a tree, and not all of a list.
_BINARY_TREE = 2
_EQUAL, _MASKED_EQUAL = 4, 7
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000
"""Flags of clone that make namespaces."""

ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev open openat close close_range creat stat fstat lstat newfstatat statx
statfs fstatfs access faccessat faccessat2 lseek mmap munmap mprotect mremap madvise brk mincore msync rt_sigaction rt_sigprocmask
rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pipe pipe2 select pselect6 poll ppoll epoll_create
epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 dup dup2 dup3 flock fsync fdatasync ftruncate fallocate getdents getdents64
getcwd chdir fchdir rename renameat renameat2 rmdir unlink unlinkat readlink readlinkat gettimeofday
clock_gettime clock_getres clock_nanosleep nanosleep time times getrlimit getrusage sysinfo uname getpid gettid getppid getpgrp
getpgid getsid getuid geteuid getgid getegid getresuid getresgid getgroups setitimer getitimer alarm pause exit exit_group wait4
waitid futex futex_waitv set_robust_list get_robust_list set_tid_address rseq membarrier sched_yield sched_getaffinity getrandom
getcpu fadvise64 copy_file_range sendfile restart_syscall timer_create timer_settime timer_gettime timer_getoverrun timer_delete
""".split()  # noqa: SIM905
ALLOWED_WITH: dict[str, tuple[int, tuple[int, ...]]] = {
    # isatty, close-on-exec, waiting bytes. No command that sends signals to another process or input to a terminal.
    "ioctl": (1, (0x5401, 0x5450, 0x5451, 0x541B)),
    # Copies, flags and locks. Not F_SETOWN and F_SETSIG: with them the kernel signals a process of the caller's choice.
    "fcntl": (1, (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)),
    # The process's own limits, which can only be lowered.
    "prlimit64": (0, (0,)),
    # A thread's name.
    "prctl": (0, (15, 16)),
}
"""Calls that are allowed with some values of one argument: its position, the values."""
_OF_OWNER = 0o700
ALLOWED_MODES = {"mkdir": (1, _OF_OWNER), "mkdirat": (2, _OF_OWNER), "umask": (0, 0)}
"""Calls that must leave folders open to their owner, because a folder that its owner cannot list cannot be measured or
removed: position of the mode among the arguments, and the owner's bits in it.
"""
REFUSED = """
socket socketpair connect bind listen accept accept4 sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg execve execveat fork vfork kill
tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_getfd pidfd_send_signal ptrace process_vm_readv process_vm_writev
process_madvise bpf perf_event_open keyctl add_key request_key userfaultfd unshare setns mount umount2 pivot_root chroot
io_uring_setup io_uring_enter io_uring_register shmget shmat shmctl semget semop semctl msgget msgsnd msgrcv msgctl mq_open setsid
setpgid setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset chmod fchmod fchmodat chown fchown lchown
fchownat link linkat symlink symlinkat mknod mknodat truncate memfd_create setpriority sched_setscheduler sched_setattr personality
open_by_handle_at name_to_handle_at setrlimit init_module finit_module kexec_load reboot swapon
""".split()  # noqa: SIM905
"""Calls that fail with "not permitted", as programs expect; every other call fails as unknown to the kernel."""
OF_SERVER = ["kill", "recvfrom", "seccomp", "sendto", "setrlimit"]
"""Further calls of the process that forks for each item: use its channel, end items, confine itself further."""


class _Comparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("operator", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def load_library() -> ctypes.CDLL:
    """Load libseccomp."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    for name in ("seccomp_attr_set", "seccomp_rule_add_array", "seccomp_export_bpf", "seccomp_release"):
        getattr(library, name).argtypes = None
    return library


def item_program(*, threads: bool) -> bytes:
    """Compile the program of a process that runs untrusted code: no process, exec, socket or signal; threads as
    requested.
    """
    values = [_masked(0, _CLONE_THREAD | _CLONE_NEW, _CLONE_THREAD)] if threads else []
    return _compile([*ALLOWED], values)


def server_program() -> bytes:
    """Compile the program of the process that compiles untrusted code and forks for each item."""
    return _compile([*ALLOWED, *OF_SERVER, "clone", "prctl"], [])


def compiler_program() -> bytes:
    """Compile the program of a compiler: an item's, plus starting processes and threads, and executing as Landlock
    allows.
    """
    # arch_prctl: a program's own start on x86-64 sets its thread's register.
    allowed = [*ALLOWED, "execve", "fork", "vfork", "arch_prctl"]
    return _compile(allowed, [_masked(0, _CLONE_NEW, 0)], refuse_processes=False)


def apply(program: bytes) -> None:
    """Irrevocably apply a program to this process, in addition to those already applied.

    Raises:
        OSError: the kernel refuses.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_char_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _masked(argument: int, mask: int, value: int) -> _Comparison:
    return _Comparison(argument, _MASKED_EQUAL, mask, value)


def _compile(allowed: list[str], clone: list[_Comparison], *, refuse_processes: bool = True) -> bytes:
    library = load_library()
    # ENOSYS for all other calls, not an end of the process: libraries then fall back to an older call.
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.ENOSYS))
    try:
        library.seccomp_attr_set(context, _ATTRIBUTE_BAD_ARCHITECTURE, ctypes.c_uint32(_KILL_PROCESS))
        library.seccomp_attr_set(context, _ATTRIBUTE_OPTIMIZE, ctypes.c_uint32(_BINARY_TREE))
        conditions = {name: [_Comparison(place, _EQUAL, value, 0) for value in values]
                      for name, (place, values) in ALLOWED_WITH.items()}  # fmt: skip
        conditions |= {name: [_masked(place, _OF_OWNER, bits)] for name, (place, bits) in ALLOWED_MODES.items()}
        conditions["clone"] = clone
        for name in allowed:
            _add(library, context, _ALLOW, name, None)
        for name in conditions.keys() - set(allowed):
            for comparison in conditions[name]:
                _add(library, context, _ALLOW, name, comparison)
        for name in set(REFUSED) - set(allowed):
            _add(library, context, _ERRNO | errno.EPERM, name, None)
        if "clone" not in allowed and refuse_processes:
            _add(library, context, _ERRNO | errno.EPERM, "clone", _masked(0, _CLONE_THREAD, 0) if clone else None)
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _add(
    library: ctypes.CDLL, context: ctypes.c_void_p, action: int, name: str, comparison: _Comparison | None
) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    # Negative: not a call of this architecture, or one that this libseccomp does not know; then it is refused.
    if number < 0:
        return
    count = 0 if comparison is None else 1
    argument = None if comparison is None else ctypes.byref(comparison)
    if failure := library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, count, argument):
        raise OSError(-failure, f"libseccomp refuses a rule for {name}")


def _export(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    descriptor = os.memfd_create("seccomp")
    try:
        if failure := library.seccomp_export_bpf(context, descriptor):
            raise OSError(-failure, "libseccomp cannot write the program")
        size = os.lseek(descriptor, 0, os.SEEK_END)
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
