"""The environment of the programs of `mens up`: addresses on loopback, secrets of the home folder, and each replica's
base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.standalone.home import secret
from cli.standalone.ports import free_port
from cli.standalone.programs import PROJECT, SERVING, replica_programs


def choose_ports(api_port: int, replicas: Sequence[str]) -> dict[str, str]:
    """Return a port for each program that listens; the API's is a free one if it is 0."""
    names, free = ("valkey", *replicas, "api"), set[int]()
    while len(free) < len(names):
        free |= {free_port()} - {api_port}
    ports = dict(zip(names, map(str, free), strict=True))
    return ports | ({"api": str(api_port)} if api_port else {})


def shared_environment(
    home: Path, base: str, ports: Mapping[str, str], memory: int | None = None, *, on_gpu: bool = False
) -> dict[str, str]:
    """Return the settings of every program; where replicas differ, those of the first one.

    Args:
        home: the installation's folder.
        base: base that the first replica serves.
        ports: see :func:`choose_ports`.
        memory: bytes that the first replica may use; None: its own setting.
        on_gpu: whether this machine has a usable GPU.
    """
    replicas = [port for name, port in ports.items() if name.startswith(SERVING)]
    environment = {
        "MENS_HOME": str(home),
        "MENS_BROKER_URL": f"redis://:{broker_password(home)}@127.0.0.1:{ports['valkey']}/0",
        "MENS_API_PORT": ports["api"],
        "MENS_API_URL": f"http://127.0.0.1:{ports['api']}",
        "MENS_SERVING_PORT": ports[SERVING],
        "MENS_SERVING_URLS": ",".join(f"http://127.0.0.1:{port}" for port in replicas),
        "MENS_SERVING_KEY": secret(home, "serving-key"),
        "MENS_METRICS_KEY": secret(home, "metrics-key"),
        "MENS_SERVING_BASE": base,
        "PYTHONPATH": str(PROJECT),
        "PYTHONUNBUFFERED": "1",
    }
    # Small models on a CPU are many times slower when threads compete; trainer and replica of a larger base use more.
    if not on_gpu:
        environment |= {"OMP_NUM_THREADS": "1"}
    return environment | _memory_setting(memory)


def _memory_setting(memory: int | None) -> dict[str, str]:
    return {} if memory is None else {"MENS_SERVING_MEMORY_BYTES": str(memory)}


def replica_environments(
    home: Path, bases: Sequence[str], ports: Mapping[str, str], memory: Sequence[int] = ()
) -> dict[str, dict[str, str]]:
    """Return the settings of each replica's own program; those of the first replica are empty, since the shared
    environment has its settings.

    Args:
        home: the installation's folder.
        bases: bases that they serve.
        ports: see :func:`choose_ports`.
        memory: bytes that each may use; empty: their own setting.
    """
    names = replica_programs(len(bases))
    own: dict[str, dict[str, str]] = {names[0]: {}}
    for name, base in list(zip(names, bases, strict=True))[1:]:
        own[name] = {
            "MENS_SERVING_BASE": base,
            "MENS_SERVING_PORT": ports[name],
            "MENS_SERVING_CACHE_DIR": str(home / f"{name}-cache"),
        }
    for name, share in list(zip(names, memory, strict=False))[1:]:
        own[name] |= _memory_setting(share)
    return own


def broker_password(home: Path) -> str:
    """Return the password that Valkey requires."""
    return secret(home, "broker-password")
