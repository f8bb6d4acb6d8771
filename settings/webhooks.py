"""Where webhooks may go, and how long a receiver may take."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas

Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written ``127.0.0.0/8,fd00::/8``."""

Port = Annotated[int, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written ``443,8443``."""


class WebhookSettings(SettingsSlice):
    """Webhooks: the only connections that the service opens to addresses its users name."""

    webhook_timeout_seconds: PositiveFloat = Field(
        15.0, description="what one attempt to deliver a webhook may take in all, its name look-up included"
    )
    webhook_connect_seconds: PositiveFloat = Field(
        5.0, description="the share of it for the connection, TLS included; the name look-up has the same once more"
    )
    webhook_max_response_bytes: PositiveInt = Field(
        65_536, description="what is read of a receiver's response, headers and body, before the connection is cut"
    )
    webhook_ports: Ports = Field((443,), description="ports that webhooks may go to")
    webhook_allowed_networks: Networks = Field(
        (),
        description="networks that webhooks may go to although they are not public, at any port and without TLS, "
        "such as `127.0.0.0/8` while developing; whoever may submit jobs can reach all that is in them",
    )
    webhook_ca_file: Path | None = Field(
        None, description="PEM file of certificate authorities that receivers may have beside the system's"
    )
