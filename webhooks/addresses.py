"""Which addresses a webhook may go to: never a way into somebody's network.

Forbidden is what IANA's registries of special-purpose addresses name, and of IPv6 all that is not allocated for global
unicast. A network's own NAT64 has its prefix where it likes: among global unicast it can't be told from the rest.
``ipaddress.is_global`` would not do: it knows less, and other things from one Python to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from settings.webhooks import WebhookSettings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL = 2_048
"""In characters."""

LONGEST_NAME = 253
"""In characters, as DNS has it."""

DEFAULT_PORTS = {"https": 443, "http": 80}

FORBIDDEN_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host: Linux takes it for loopback
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a public address, but in Azure's machines the host's own services
        "169.254.0.0/16",  # link-local, with the clouds' metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112: name servers that every network may have of its own
        "192.52.193.0/24",  # relays of AMT
        "192.88.99.0/24",  # relays of 6to4
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
"""Outside of it: loopback, mapped and translated IPv4, unique local (fd00:ec2::254), link-local, multicast."""

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
IPV4_IN_LAST_BITS = tuple(
    IPv6Network(network)
    for network in (
        "::/96",  # compatible
        "::ffff:0:0/96",  # mapped
        "::ffff:0:0:0/96",  # translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # a network's own NAT64, where its prefix has 96 bits as is usual
    )
)
SIX_TO_FOUR, TEREDO = IPv6Network("2002::/16"), IPv6Network("2001::/32")

_CHARACTERS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
"""Those of RFC 3986. Whoever sends a request to a URL with others writes them percent-encoded, which is longer."""

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([1-9][0-9]{0,4}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class ForbiddenUrl(Exception):  # noqa: N818 (it names what the URL is, not a mistake of ours)
    """A webhook may not go there. Its words are meant for whoever gave the URL."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What is open. ports: at which public addresses may be reached; allowed: networks that are open besides."""

    ports: frozenset[int] = frozenset({443})
    allowed: tuple[Network, ...] = ()

    @classmethod
    def of(cls, settings: WebhookSettings) -> AddressRules:
        """As the settings say."""
        return cls(frozenset(settings.webhook_ports), settings.webhook_allowed_networks)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads.

    host: a name in lower case, or an address without brackets; in_allowed_networks: it may go there only if all its
    addresses are in allowed networks, for it has no TLS or its port is not one of those that are open to all.
    """

    scheme: str
    host: str
    port: int
    in_allowed_networks: bool

    @property
    def address(self) -> Address | None:
        """The host, where it is an address and not a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def check_url(url: str, rules: AddressRules) -> Target:
    """Where a URL leads, as far as it says itself: no name is looked up. Raises :class:`ForbiddenUrl`.

    Read strictly: what parsers are known to differ about is refused, so that nobody can read it otherwise.
    """
    if len(url) > LONGEST_URL:
        raise ForbiddenUrl(f"the URL is longer than {LONGEST_URL:,} characters")
    if not _CHARACTERS.fullmatch(url):
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
    match = _AUTHORITY.fullmatch(authority)
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
    target = Target(scheme, _host(match[1].lower()), port, scheme != "https" or port not in rules.ports)
    if target.address is not None:
        check_addresses(target, [target.host], rules)
    return target


def _host(text: str) -> str:
    """A name or an address, in its one form."""
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except AddressValueError:
            raise ForbiddenUrl("the URL's host is not an IPv6 address") from None
    labels = text.split(".")
    if len(text) > LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise ForbiddenUrl("the URL's host is not a name")
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers take 127.1, 0177.0.0.1, 0x7f000001 and 2130706433 for addresses; here an address has one form.
        try:
            return str(IPv4Address(text))
        except AddressValueError:
            raise ForbiddenUrl("the URL's host is not an IPv4 address of four decimal numbers") from None
    return text


def check_addresses(target: Target, addresses: Iterable[str], rules: AddressRules) -> list[Address]:
    """What a target's host was found to stand for, each address once. Raises :class:`ForbiddenUrl`.

    One that is forbidden forbids all: whoever gives both could not be trusted with the choice. The message does not say
    which it was. Of a name not even so much may be told: names of an inner network are nobody's to ask for.
    """
    found: dict[Address, None] = {}
    for text in addresses:
        # A zone (fe80::1%eth0) comes with link-local addresses alone.
        address = ip_address(text.partition("%")[0])
        if not _open(address, rules, public=not target.in_allowed_networks):
            raise ForbiddenUrl("the URL leads to an address that webhooks don't go to")
        found[address] = None
    return list(found)


def _open(address: Address, rules: AddressRules, *, public: bool) -> bool:
    """Whether a webhook may go there; public: whether it suffices that anybody may."""
    allowed = any(address in network for network in rules.allowed)
    if not allowed and not (public and _is_public(address)):
        return False
    return all(_open(inner, rules, public=public) for inner in _embedded(address))


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in FORBIDDEN_IPV4)
    return address in GLOBAL_IPV6 and not any(address in network for network in FORBIDDEN_IPV6)


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that packets to an IPv6 address may end up at."""
    if isinstance(address, IPv4Address) or address.is_loopback or address.is_unspecified:
        return
    bits = int(address)
    if any(address in network for network in IPV4_IN_LAST_BITS):
        yield IPv4Address(bits & 0xFFFFFFFF)
    elif address in SIX_TO_FOUR:
        yield IPv4Address(bits >> 80 & 0xFFFFFFFF)
    elif address in TEREDO:
        yield IPv4Address(bits >> 64 & 0xFFFFFFFF)
        yield IPv4Address(~bits & 0xFFFFFFFF)
