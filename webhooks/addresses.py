"""Which addresses a webhook may go to: never a way into somebody's network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from settings.webhooks import WebhookSettings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class ForbiddenUrl(Exception):  # noqa: N818 (it names what the URL is, not a mistake of ours)
    """A webhook may not go there. Its words are meant for whoever gave the URL."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    """What is open. ports: that any public address may be reached at; allowed: networks that are open besides."""

    ports: frozenset[int] = field(default=frozenset({443}))
    allowed: tuple[Network, ...] = ()

    @classmethod
    def of(cls, settings: WebhookSettings) -> AddressRules:
        """As the settings say."""
        return cls(frozenset(settings.webhook_ports), settings.webhook_allowed_networks)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads: host in lower case, an address without its brackets; opened: only allowed networks will do."""

    scheme: str
    host: str
    port: int
    opened: bool


def check_url(url: str, rules: AddressRules) -> Target:
    """Where a URL leads, by itself, without looking its name up. Raises :class:`ForbiddenUrl`."""
    raise NotImplementedError


def check_addresses(target: Target, addresses: Iterable[str], rules: AddressRules) -> list[Address]:
    """What a target's name was found to stand for. Raises :class:`ForbiddenUrl` if one of them is forbidden."""
    raise NotImplementedError
