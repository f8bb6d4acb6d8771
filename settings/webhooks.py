"""Where webhooks may be sent, the limits of one attempt, and the rotation of secrets."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas

Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written as ``127.0.0.0/8,fd00::/8``."""

Port = Annotated[int, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written as ``443,8443``."""


class WebhookSettings(SettingsSlice):
    """Webhooks. Their requests are the only ones that the service sends to addresses chosen by its users."""

    webhook_timeout_seconds: PositiveFloat = Field(
        15.0, description="time limit of one attempt to deliver a webhook, name lookup included"
    )
    webhook_connect_seconds: PositiveFloat = Field(
        5.0,
        description="time limit of the name lookup, and time limit of connecting, TLS included; both are part of one "
        "attempt",
    )
    webhook_max_response_bytes: PositiveInt = Field(
        65_536, description="bytes read of a receiver's response, headers and body, before the connection is cut"
    )
    webhook_ports: Ports = Field((443,), description="ports that webhooks may go to")
    webhook_allowed_networks: Networks = Field(
        (),
        description="private networks that webhooks may go to, at any port and without TLS, such as `127.0.0.0/8` "
        "for development; everyone who may submit jobs can reach every address in them",
    )
    webhook_secret_overlap_seconds: PositiveFloat = Field(
        86400.0, description="for this long after a rotation webhooks are signed with the old secret, too"
    )
    webhook_ca_file: Path | None = Field(
        None, description="PEM file of certificate authorities trusted for receivers, besides the system's"
    )
