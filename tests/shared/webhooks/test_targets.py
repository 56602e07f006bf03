"""Allowed targets of webhooks: addresses that are not public are refused, in every notation, unless they are allowed."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest
from shared.webhooks.targets import AllowedTargets, check_url, embedded_ipv4, is_public

NOTHING = AllowedTargets()
PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")
NOT_PUBLIC = (
    "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "239.1.2.3", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1",
    "192.0.0.192", "192.0.0.9", "192.88.99.1", "fec0::1", "3fff::1", "5f00::1", "64:ff9b:1::1", "100::1", "2001:20::1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert NOTHING.permit("hooks.example", ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_others_are_not(address: str) -> None:
    assert not NOTHING.permit("hooks.example", ip_address(address))
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidRequest) as refusal:
        check_url(f"https://{host}/x", NOTHING)
    assert (refusal.value.code, refusal.value.param) == (Code.WEBHOOK_URL_FORBIDDEN, "url")


@given(st.ip_addresses(v=4))
def test_no_form_of_an_address_gains_anything(address: IPv4Address) -> None:
    """The IPv4 address inside an IPv6 address decides, in each of the notations."""
    forms = [f"::ffff:{address}", f"64:ff9b::{address}", str(IPv6Address((0x2002 << 112) | (int(address) << 80)))]
    for form in forms:
        assert embedded_ipv4(ip_address(form)) == address
        assert NOTHING.permit("x", ip_address(form)) == is_public(address)


def test_networks_and_hosts_that_are_allowed() -> None:
    allowed = AllowedTargets.parse(["10.2.0.0/16", "fd00::/8", "127.0.0.1", "hooks.internal", "*.corp.example"])
    assert allowed.permit("anything", ip_address("10.2.3.4"))
    assert allowed.permit("anything", ip_address("::ffff:10.2.3.4"))
    assert allowed.permit("anything", ip_address("fd00::1"))
    assert not allowed.permit("anything", ip_address("10.3.0.1"))
    assert allowed.permit("Hooks.Internal.", ip_address("192.168.0.1"))
    assert allowed.permit("a.corp.example", ip_address("192.168.0.1"))
    assert not allowed.permit("corp.example", ip_address("192.168.0.1"))
    assert not allowed.permit("evilcorp.example", ip_address("192.168.0.1"))


@pytest.mark.parametrize("entry", ["https://hooks.internal", "a b", "hooks:80", "a.*.b", "10.0.0.0/99"])
def test_an_entry_that_is_neither_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a host name, address or network"):
        AllowedTargets.parse([entry])


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/x", "ftp://hooks.example/x", "hooks.example/x", "https:///x", "https://user:pw@hooks.example/",
        "https://hooks.example/#x", "https://hooks.example/a b", "https://hooks.example/\r\nX: y", "https://hooks.example:99999/",
        "https://[::1/", "https://localhost/x", "https://a.localhost/x", "https://hooks.example/" + "x" * 2048, "https://höks.example/",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_url(url, NOTHING)
    assert refusal.value.code is Code.WEBHOOK_URL_FORBIDDEN


def test_plain_http_is_for_hosts_that_are_allowed() -> None:
    allowed = AllowedTargets.parse(["hooks.internal", "10.2.0.0/16"])
    for url in ("http://hooks.internal/x", "http://10.2.3.4:8080/x", "https://hooks.example:8443/x?y=z"):
        check_url(url, allowed)
    with pytest.raises(InvalidRequest):
        check_url("http://hooks.example/x", allowed)
