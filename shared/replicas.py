"""The serving replicas: their locations (URLs, the addresses behind a DNS name, or both), and responses of their own
routes.

The gateway and the publisher both discover replicas here, so adapters are certified on the replicas that get requests.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from shared.errors import Code, Unavailable

TENANT_SALT_CHARS = 64
"""Length of the prefix of a request's ``cache_salt`` that identifies the tenant; the rest is the caller's own."""


class ServedBaseName(NamedTuple):
    """A served base, as error messages name it.

    Attributes:
        name: its own.
        twin_of: name of its original, if it is a dequantised twin.
    """

    name: str
    twin_of: str | None = None

    def __str__(self) -> str:
        return f"{self.name} (the twin of {self.twin_of})" if self.twin_of else self.name


Weights = Literal["original", "twin"]
"""A base as it was added, or its dequantised twin with the values that NF4 training computes with."""


class Fit(IntEnum):
    """Fit of a replica's weights for an adapter; higher is better."""

    NONE = 0
    """The replica has the twin, but the adapter was trained on the unquantised base."""
    SHIFTED = 1
    """The adapter was trained over NF4, but the replica has the original, or a twin of another quantisation: it is
    served with a base shift.
    """
    EXACT = 2
    """The replica has the weights that the adapter's training computed with, or these are unknown."""


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The weights that an adapter's training computed with.

    Attributes:
        base_quant: quantisation of the base: ``none`` or ``nf4``.
        double_quant: whether NF4's own scales were quantised too.
    """

    base_quant: str
    double_quant: bool = True

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> TrainedWeights | None:
        """Read them from an adapter's manifest; None if unknown, as for an import, which counts as unquantised."""
        quant = manifest.get("quant") or {}
        is_known = quant.get("base_quant") == "nf4" or manifest.get("trained_dtype")
        return cls(str(quant["base_quant"]), bool(quant.get("double_quant", True))) if quant and is_known else None


class ReplicaCapabilities(BaseModel):
    """A replica's base and capabilities: the response of ``GET /mens/limits``.

    Attributes:
        base: name of the served base.
        base_digest: digest of the base whose adapters it serves; None when the replica was started without one.
        served_digest: digest of the weights it serves; it differs from ``base_digest`` on a dequantised twin.
        twin_of: name of its original, if it is a dequantised twin.
        double_quant: whether the NF4 whose values a twin contains was double-quantised; None: not a twin, or an earlier
            release.
        dtype: dtype that vLLM computes in, e.g. ``float32``; None when it is not reported.
        max_lora_rank: largest rank that it loads.
        max_model_len: longest context in tokens that its settings require; None: the model's own, or what fits.
        context: tokens of the longest sequence that the engine takes; None: unknown, or an earlier release.
        adapts_head: whether it serves adapters that change an untied ``lm_head``.
        instance: value that changes with each start and invalidates earlier measurements; None: an earlier release.
    """

    model_config = ConfigDict(frozen=True)
    base: str
    base_digest: str | None = None
    served_digest: str
    twin_of: str | None = None
    double_quant: bool | None = None
    dtype: str | None = None
    max_lora_rank: int
    max_model_len: int | None = None
    context: int | None = None
    adapts_head: bool = True
    instance: str | None = None

    @property
    def weights(self) -> Weights:
        """Return which weights it serves."""
        return "original" if self.twin_of is None else "twin"

    def fit_of(self, trained: TrainedWeights | None) -> Fit:
        """Return how well its weights suit an adapter of its base.

        Args:
            trained: the weights that the adapter was trained on; None: unknown, as for an import.
        """
        if trained is None:
            return Fit.EXACT
        if trained.base_quant == "none":
            return Fit.EXACT if self.twin_of is None else Fit.NONE
        if self.twin_of is None or self.double_quant not in (None, trained.double_quant):
            return Fit.SHIFTED
        return Fit.EXACT

    @property
    def adapters_digest(self) -> str:
        """Digest of the base whose adapters the replica serves."""
        return self.base_digest or self.served_digest

    @property
    def base_name(self) -> ServedBaseName:
        """Name of the served base, for an error message."""
        return ServedBaseName(self.base, self.twin_of)


class AdapterCheck(BaseModel):
    """An adapter that a replica has fetched and verified: the response of ``GET /mens/adapters/<adapter id>``."""

    model_config = ConfigDict(frozen=True)
    id: str
    ok: Literal[True] = True
    base: str
    rank: int
    step: int


class UnloadProgress(BaseModel):
    """Progress of unloading an adapter from a replica: the response of ``DELETE /mens/adapters/<adapter id>``.

    Attributes:
        state: ``draining``: requests are still in flight, call again.
        requests: number of them.
    """

    model_config = ConfigDict(frozen=True)
    id: str
    state: Literal["unloaded", "draining"]
    requests: int = 0


def discover(urls: Sequence[str], dns: str = "") -> list[str]:
    """Return the base URL of every replica once: the static ones as given, then one for every address of the name.

    Blocks for as long as the resolver takes.

    Args:
        urls: URLs of the static replicas.
        dns: ``host:port`` whose host has one address per replica, as a headless service has; empty: not used.

    Raises:
        Unavailable: ``SERVING_UNAVAILABLE``: the name has no address now.
    """
    base_urls = [url.rstrip("/") for url in urls]
    if dns:
        base_urls += [f"http://{address}:{dns.rpartition(':')[2]}" for address in _addresses(dns)]
    return list(dict.fromkeys(base_urls))


def describe_unserved(base: str, served: Iterable[ServedBaseName]) -> str:
    """Return the message that no replica serves a base, with the bases that are served.

    Args:
        base: its name.
        served: the served bases; one of the same name is served from other files.
    """
    names = {served_base.name: str(served_base) for served_base in served}
    if base in names:
        if names[base] != base:
            return f"{names[base]} is served here only with the adapters of its original."
        return f"{base} is served here from files that differ from those that this request needs."
    unserved = f"{base} is not served here"
    *others, last = sorted(names.values()) or [""]
    if others:
        return f"{unserved}; {', '.join(others)} and {last} are."
    return f"{unserved}; {last} is." if last else f"{unserved}."


def serving_remedy(base: str, served: Iterable[ServedBaseName]) -> str:
    """Return the commands that serve a base, as the beginning of a remedy, without its full stop.

    Args:
        base: its name.
        served: see :func:`describe_unserved`. The command serves them too: `mens up` serves the bases that it names.
    """
    originals = {served_base.name: served_base.twin_of for served_base in served}
    if original := originals.get(base):
        return f"Use {original}, its original"
    if base in originals:
        return f"Restart the replicas of {base}, so that they load the current files of the catalogue"
    options = " ".join(f"--base {name}" for name in [*sorted(originals), base])
    if base in originals.values():  # else `mens up` may choose the twin again
        options += " --weights original"
    return f"Serve it with `mens up {options}`, or set MENS_SERVING_BASE={base} for replicas that you start yourself"


def rank_remedy(rank: int) -> str:
    """Return the command for serving adapters of a rank, as the end of a remedy, without its full stop."""
    setting = f"MENS_SERVING_MAX_LORA_RANK={rank}"
    return f"start the replicas with {setting}, as in `{setting} mens up`"


def replica_name(url: str) -> str:
    """Return a replica's name for places that must not show its address: stable, and useless for connecting."""
    return f"replica-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _addresses(dns: str) -> list[str]:
    """Resolve the name to addresses, in a stable order."""
    host, _, port = dns.rpartition(":")
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            Code.SERVING_UNAVAILABLE,
            f"{host}, the name of the serving replicas, does not resolve to an address ({error.strerror or error}).",
            remedy="Check that a replica is ready: only ready replicas have an address behind MENS_SERVING_DNS.",
        ) from error
    by_family = {
        family: sorted({str(address[0]) for kind, *_, address in resolved if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    # A replica with IPv4 and IPv6 is one replica, so IPv6 addresses are used only without IPv4 ones.
    return by_family[socket.AF_INET] or [f"[{address}]" for address in by_family[socket.AF_INET6]]
