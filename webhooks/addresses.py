"""Which URLs and addresses a webhook may be sent to, so that it can't reach into a private network (SSRF).

Forbidden are the addresses in IANA's registries of special-purpose addresses, and all IPv6 addresses outside the range
allocated for global unicast. A network may choose its own NAT64 prefix within global unicast; such a prefix can't be
recognised. ``ipaddress.is_global`` is not used: it covers less, and its answers differ between versions of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from settings.webhooks import WebhookSettings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_LENGTH = 2_048  # characters
MAX_HOST_LENGTH = 253  # characters, the limit of DNS
DEFAULT_PORTS = {"https": 443, "http": 80}

FORBIDDEN_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host: Linux treats it as loopback
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a public address that reaches services of the host on Azure's machines
        "169.254.0.0/16",  # link-local, including the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112: name servers that any network may run for itself
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
GLOBAL_IPV6 = IPv6Network("2000::/3")
"""Outside are loopback, mapped and translated IPv4, unique local (fd00:ec2::254), link-local and multicast."""

FORBIDDEN_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
IPV4_IN_LAST_32_BITS = tuple(
    IPv6Network(network)
    for network in (
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 local to a network, with the usual prefix of 96 bits
    )
)
SIX_TO_FOUR, TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")

_URL_CHARACTERS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
"""The characters of RFC 3986. Others would be percent-encoded when the request is sent, which makes the URL longer."""

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_HOST_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")


class ForbiddenUrl(Exception):  # noqa: N818 (it describes the URL, not a fault of this service)
    """A webhook may not be sent to this URL. The message is shown to the user who gave the URL."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Where webhooks may be sent."""

    ports: frozenset[int] = frozenset({443})  # open at all public addresses
    allowed: tuple[Network, ...] = ()  # networks that are open at every port and without TLS

    @classmethod
    def from_settings(cls, settings: WebhookSettings) -> AddressRules:
        return cls(frozenset(settings.webhook_ports), settings.webhook_allowed_networks)


@dataclass(frozen=True, slots=True)
class Target:
    """The host and port that a URL names."""

    scheme: str
    host: str  # a name in lower case, or an address without brackets
    port: int
    in_allowed_networks: bool
    """Whether all addresses must be in allowed networks, because there is no TLS or the port is not open to all."""

    @property
    def address(self) -> Address | None:
        """The host if it is an address, None if it is a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def check_url(url: str, rules: AddressRules) -> Target:
    """Return the host and port that a URL names, without looking its name up. Raises :class:`ForbiddenUrl`.

    Every form that URL parsers are known to read differently is refused, so that no other parser finds another host.
    """
    if len(url) > MAX_URL_LENGTH:
        raise ForbiddenUrl(f"the URL is longer than {MAX_URL_LENGTH:,} characters")
    if not _URL_CHARACTERS.fullmatch(url):
        raise ForbiddenUrl(
            "the URL has a character that URLs don't have: a path is written percent-encoded, a name in its xn-- form"
        )
    if "#" in url:
        raise ForbiddenUrl("the URL has a fragment")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in DEFAULT_PORTS:
        raise ForbiddenUrl("the URL does not begin with https://")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise ForbiddenUrl("the URL names a user")
    match = _HOST_AND_PORT.fullmatch(authority)
    if match is None:
        raise ForbiddenUrl("the URL's host and port can't be read")
    port = int(match[2] or DEFAULT_PORTS[scheme])
    if port > 65_535:
        raise ForbiddenUrl("the URL's port does not exist")
    if not rules.allowed:
        if scheme != "https":
            raise ForbiddenUrl("the URL does not begin with https://")
        if port not in rules.ports:
            raise ForbiddenUrl(f"webhooks don't go to port {port}")
    target = Target(scheme, _normalize_host(match[1].lower()), port, scheme != "https" or port not in rules.ports)
    if target.address is not None:
        check_addresses(target, [target.host], rules)
    return target


def _normalize_host(text: str) -> str:
    """Return a name or an address in its canonical form. Raises :class:`ForbiddenUrl`."""
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except AddressValueError:
            raise ForbiddenUrl("the URL's host is not an IPv6 address") from None
    labels = text.split(".")
    if len(text) > MAX_HOST_LENGTH or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ForbiddenUrl("the URL's host is not a name")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        # Resolvers read 127.1, 0177.0.0.1, 0x7f000001 and 2130706433 as addresses; here only the dotted form is one.
        try:
            return str(IPv4Address(text))
        except AddressValueError:
            raise ForbiddenUrl("the URL's host is not an IPv4 address of four decimal numbers") from None
    return text


def check_addresses(target: Target, addresses: Iterable[str], rules: AddressRules) -> list[Address]:
    """Return the addresses that a target's host resolved to, without duplicates. Raises :class:`ForbiddenUrl`.

    If one address is forbidden, all of them are: a name server that gives both kinds is not trusted. The message does
    not say which address it was. If the host is a name, the caller must hide even this error. Otherwise a user could
    find out which names a private network has.
    """
    found: dict[Address, None] = {}
    for text in addresses:
        # Only link-local addresses have a zone (fe80::1%eth0), and they are forbidden with or without it.
        address = ip_address(text.partition("%")[0])
        if not _is_allowed(address, rules, public=not target.in_allowed_networks):
            raise ForbiddenUrl("the URL leads to an address that webhooks don't go to")
        found[address] = None
    return list(found)


def _is_allowed(address: Address, rules: AddressRules, *, public: bool) -> bool:
    """Whether a webhook may be sent there. public: whether any public address is allowed."""
    allowed = any(address in network for network in rules.allowed)
    if not allowed and not (public and _is_public(address)):
        return False
    return all(_is_allowed(inner, rules, public=public) for inner in _embedded_ipv4(address))


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in FORBIDDEN_IPV4)
    return address in GLOBAL_IPV6 and not any(address in network for network in FORBIDDEN_IPV6)


def _embedded_ipv4(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to an IPv6 address may be forwarded to."""
    if isinstance(address, IPv4Address) or address.is_loopback or address.is_unspecified:
        return
    bits = int(address)
    if any(address in network for network in IPV4_IN_LAST_32_BITS):
        yield IPv4Address(bits & 0xFFFFFFFF)
    elif address in SIX_TO_FOUR:
        yield IPv4Address(bits >> 80 & 0xFFFFFFFF)
    elif address in TEREDO:
        yield IPv4Address(bits >> 64 & 0xFFFFFFFF)
        yield IPv4Address(~bits & 0xFFFFFFFF)
