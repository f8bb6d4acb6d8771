"""The process that delivers webhooks."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas

Pauses = Annotated[tuple[PositiveFloat, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Seconds, written as ``5,300,1800``."""


class DeliverySettings(SettingsSlice):
    """How fast webhooks are delivered, when they are retried, and when an endpoint is disabled."""

    delivery_poll_seconds: PositiveFloat = Field(
        1.0, description="how often a delivering process looks for webhooks that are due"
    )
    delivery_concurrency: PositiveInt = Field(32, description="webhooks that one delivering process sends at once")
    delivery_host_concurrency: PositiveInt = Field(
        4, description="webhooks that are sent to one host at once, by all delivering processes"
    )
    webhook_retry_seconds: Pauses = Field(
        (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0),
        description="pause after each failed attempt, up to a fifth longer; after the last one, no more attempts",
    )
    webhook_disable_seconds: PositiveFloat = Field(
        5 * 86400.0, description="an endpoint that has failed for this long, without a success, gets no more webhooks"
    )
    delivery_metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port at which a delivering process offers `/metrics`; unset: none"
    )
    delivery_metrics_host: str = Field("127.0.0.1", description="address to bind for these metrics")
