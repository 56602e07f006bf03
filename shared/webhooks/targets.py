"""Allowed targets of webhooks: public addresses over HTTPS, and addresses that the operator adds.

A tenant chooses the URL and the worker connects, from inside the network: without these rules a tenant could reach
everything that the worker reaches (server-side request forgery). The URL is checked when it is stored, and the address
that its host resolves to when the connection is made, so a name that later resolves to another address is of no use to
an attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from shared.errors import Code, InvalidRequest

MAX_URL_CHARS = 2048
NAT64 = IPv6Network("64:ff9b::/96")
IPV4_COMPATIBLE = IPv6Network("::/96")
SPECIAL = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
            "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fec0::/10",
        ),
    )
)  # fmt: skip
"""Blocks of IANA's special-purpose registries, and site-local addresses: `ipaddress` calls parts of them global. No
receiver of webhooks has such an address; 192.0.0.192 is a cloud's metadata service.
"""
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class AllowedTargets:
    """Targets that the operator adds to public addresses over HTTPS: hosts by name, and networks.

    Attributes:
        hosts: lower case; ``*.example.org`` is every name under it.
        networks: networks of addresses.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Sequence[str]) -> AllowedTargets:
        """Parse the entries of the setting: addresses, networks, and host names.

        Raises:
            ValueError: an entry has none of these forms.
        """
        hosts, networks = [], []
        for entry in entries:
            try:
                networks.append(ip_network(entry.strip("[]")))
            except ValueError:
                name = entry.lower().rstrip(".")
                if any(sign in name for sign in "/:@ ") or "*" in name.removeprefix("*."):
                    raise ValueError(
                        f"{entry!r} is not a host name, address or network, such as hooks.internal, *.corp.example "
                        "or 10.2.0.0/16"
                    ) from None
                hosts.append(name)
        return cls(tuple(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Return whether a host is allowed by its name, or by its address if it is one."""
        host = host.lower().rstrip(".")
        address = parse_address(host)
        if address is not None:
            return self.contain(address)
        return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in self.hosts)

    def contain(self, address: Address) -> bool:
        """Return whether an address is in an allowed network."""
        return any(address.version == network.version and address in network for network in self.networks)

    def permit(self, host: str, address: Address) -> bool:
        """Return whether a connection to the address that a host has resolved to is allowed."""
        address = embedded_ipv4(address) or address
        return is_public(address) or self.contain(address) or (parse_address(host) is None and self.names(host))


def check_url(url: str, allowed: AllowedTargets) -> SplitResult:
    """Check the URL of a webhook, without resolving its host.

    Raises:
        InvalidRequest: ``WEBHOOK_URL_FORBIDDEN``.
    """
    try:
        target = urlsplit(url)
        host, _ = target.hostname or "", target.port
    except ValueError:
        raise _forbidden("it is not a URL") from None
    if len(url) > MAX_URL_CHARS or not url.isascii() or any(sign <= " " or sign == "\x7f" for sign in url):
        raise _forbidden(f"it must have at most {MAX_URL_CHARS} ASCII characters, without spaces")
    if target.scheme not in ("https", "http") or not host:
        raise _forbidden("it must begin with https:// and a host")
    if target.username is not None or target.password is not None or target.fragment:
        raise _forbidden("it must not contain user, password or fragment; receivers verify the signature")
    if target.scheme == "http" and not allowed.names(host):
        raise _forbidden("it must begin with https://")
    address = parse_address(host)
    # A name is checked when it is resolved, and so are addresses that only a resolver accepts, such as 127.1.
    if address is not None and not allowed.permit(host, address):
        raise _forbidden(f"{host} is not a public address")
    if address is None and (host == "localhost" or host.endswith(".localhost")) and not allowed.names(host):
        raise _forbidden(f"{host} is this machine")
    return target


def parse_address(host: str) -> Address | None:
    """Return the address if the host is one; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Return whether an address is public: not private, loopback, link-local, shared, reserved, multicast or special."""
    address = embedded_ipv4(address) or address
    if any(address.version == network.version and address in network for network in SPECIAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def embedded_ipv4(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 address: mapped, compatible, 6to4, Teredo or NAT64; None for any other."""
    if isinstance(address, IPv4Address):
        return None
    if address.teredo is not None:
        return address.teredo[1]
    if address in NAT64 or (address in IPV4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _forbidden(reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.WEBHOOK_URL_FORBIDDEN,
        f"Webhooks cannot be sent to this URL: {reason}.",
        remedy=(
            "Use an https:// URL of a public host, or ask an operator to allow internal receivers with "
            "MENS_WEBHOOK_ALLOWED."
        ),
        param="url",
    )
