"""The serving replicas: where they are (URLs, the addresses behind a DNS name, or both), and what their own routes return.

The gateway and the publisher both discover replicas here, so adapters are certified on the replicas that get requests.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.errors import Code, Unavailable

TENANT_SALT_CHARS = 64
"""The beginning of a request's ``cache_salt`` that says whose it is; what follows is the caller's own."""


TWIN_OF = " (the twin of "
"""Stands between the names of a twin and its original in an error message."""


class ReplicaCapabilities(BaseModel):
    """What a replica serves and can serve: the response of ``GET /mens/limits``.

    Attributes:
        base: name of the served base.
        base_digest: of the base whose adapters belong here; None when the replica was started without one.
        served_digest: of the weights it serves; another one than ``base_digest`` on a dequantised twin.
        twin_of: name of the base that it is the dequantised twin of.
        dtype: in which vLLM computes, e.g. ``float32``; None when it is not reported.
        max_lora_rank: largest rank that it loads.
        max_model_len: longest context in tokens; None: the model's own.
        adapts_head: whether it serves adapters that change an untied ``lm_head``.
        instance: another one after each start, so that what was measured before does not count; None: an earlier release.
    """

    model_config = ConfigDict(frozen=True)
    base: str
    base_digest: str | None = None
    served_digest: str
    twin_of: str | None = None
    dtype: str | None = None
    max_lora_rank: int
    max_model_len: int | None = None
    adapts_head: bool = True
    instance: str | None = None

    @property
    def adapters_digest(self) -> str:
        """Digest of the base whose adapters it serves."""
        return self.base_digest or self.served_digest

    @property
    def described(self) -> str:
        """Name of the served base for an error message; of a twin also that of its original."""
        return f"{self.base}{TWIN_OF}{self.twin_of})" if self.twin_of else self.base


class AdapterCheck(BaseModel):
    """An adapter that a replica has fetched and verified: the response of ``GET /mens/adapters/<adapter id>``."""

    model_config = ConfigDict(frozen=True)
    id: str
    ok: Literal[True] = True
    base: str
    rank: int
    step: int


class UnloadProgress(BaseModel):
    """How far a replica is with unloading an adapter: the response of ``DELETE /mens/adapters/<adapter id>``.

    Attributes:
        state: ``draining``: requests are still in flight, call again.
        requests: how many are in flight.
    """

    model_config = ConfigDict(frozen=True)
    id: str
    state: Literal["unloaded", "draining"]
    requests: int = 0


def discover(urls: Sequence[str], dns: str = "") -> list[str]:
    """Base URLs of every replica, each once: the static ones as given, then one for every address of the name.

    Blocks for as long as the resolver takes.

    Args:
        urls: of the static replicas.
        dns: ``host:port`` whose host has one address per replica, as a headless service has; empty: there is none.

    Raises:
        Unavailable: ``SERVING_UNAVAILABLE``: the name has no address now.
    """
    found = [url.rstrip("/") for url in urls]
    if dns:
        found += [f"http://{address}:{dns.rpartition(':')[2]}" for address in _addresses(dns)]
    return list(dict.fromkeys(found))


def describe_unserved(base: str, served: Iterable[str]) -> str:
    """Say that no replica serves a base, and which bases are served instead.

    Args:
        base: its name.
        served: descriptions of the served bases (`ReplicaCapabilities.described`); one that equals ``base`` is served from
            other files.
    """
    names = sorted(set(served))
    if twin := _as_twin(base, names):
        return f"{twin} is served here with the adapters of its original alone."
    if base in names:
        return f"{base} is served here from other files than this request needs."
    if not names:
        return f"{base} is not served here."
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{base} is not served here; {listed} {'is' if len(names) == 1 else 'are'}."


def serving_remedy(base: str, served: Iterable[str] = ()) -> str:
    """The commands that serve a base, as the beginning of a remedy, without its full stop.

    Args:
        base: its name.
        served: as in :func:`describe_unserved`.
    """
    names = set(served)
    if _as_twin(base, names):
        return "Name the original"
    if base in names:
        return f"Restart the replicas of {base}, so that they load the files that the catalogue names now"
    return f"Serve it with `mens up --base {base}`, or for replicas that you start yourself MENS_SERVING_BASE={base}"


def _as_twin(base: str, served: Iterable[str]) -> str | None:
    """The description of a base that is served as a twin."""
    return next((each for each in served if each.startswith(f"{base}{TWIN_OF}")), None)


def replica_name(url: str) -> str:
    """A replica's name where its address must not be shown: always the same, and nothing to connect to."""
    return f"replica-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _addresses(dns: str) -> list[str]:
    """Addresses of the name in a stable order."""
    host, _, port = dns.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            Code.SERVING_UNAVAILABLE,
            f"{host}, the name of the serving replicas, has no address ({error.strerror or error}).",
            remedy="Check that a replica is ready: only ready ones have an address behind MENS_SERVING_DNS.",
        ) from error
    by_family = {
        family: sorted({str(address[0]) for kind, *_, address in found if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    # A replica with IPv4 and IPv6 is one replica, so IPv6 addresses are used only without IPv4 ones.
    return by_family[socket.AF_INET] or [f"[{address}]" for address in by_family[socket.AF_INET6]]
