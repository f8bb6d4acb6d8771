"""How many tenants the metrics name, and where traces go, if there are any."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from settings.slice import SettingsSlice, split_at_commas


class TelemetrySettings(SettingsSlice):
    """What metrics tell."""

    metric_tenants: NonNegativeInt = Field(
        0,
        le=1_000,
        description="how many tenants `/metrics` names, the first that submit work after a start; all others are "
        "counted together as `other`",
    )


class Exporter(StrEnum):
    """Where spans go."""

    OTLP = "otlp"  # to a collector, by the OpenTelemetry protocol
    CONSOLE = "console"  # to stdout, as JSON
    NONE = "none"


Protocol = Literal["http/protobuf", "grpc"]


class TracingError(ValueError):
    """Traces are asked for and can't be made. The message is one line for whoever asked."""


class TracingSettings(BaseSettings):
    """The variables of OpenTelemetry that say whether there are traces. Its SDK reads the other ones itself."""

    model_config = SettingsConfigDict(env_prefix="OTEL_", frozen=True, extra="ignore", env_ignore_empty=True)

    sdk_disabled: bool = False
    traces_exporter: Annotated[tuple[Exporter, ...] | None, NoDecode, BeforeValidator(split_at_commas)] = None
    exporter_otlp_endpoint: str | None = None
    exporter_otlp_traces_endpoint: str | None = None
    exporter_otlp_protocol: Protocol = "http/protobuf"
    exporter_otlp_traces_protocol: Protocol | None = None

    @classmethod
    def read(cls) -> Self:
        """Read the variables. Raises TracingError, which names the first one with a wrong value."""
        try:
            return cls()
        except ValidationError as error:
            mistake = error.errors(include_url=False)[0]
            name, expected = str(mistake["loc"][0]), mistake["msg"].removeprefix("Input ")
            raise TracingError(
                f"OTEL_{name.upper()} has the value {str(mistake['input'])!r}, which {expected}; "
                "correct it, or set OTEL_SDK_DISABLED=true for no traces"
            ) from None

    @property
    def exporters(self) -> tuple[Exporter, ...]:
        """Where spans go. Empty: there are no traces.

        OpenTelemetry's default is a collector on this machine. Here, one must be asked for: by the name of the exporter
        or by the collector's address.
        """
        if self.sdk_disabled:
            return ()
        if self.traces_exporter is not None:
            return tuple(exporter for exporter in self.traces_exporter if exporter is not Exporter.NONE)
        addresses = (self.exporter_otlp_endpoint, self.exporter_otlp_traces_endpoint)
        return (Exporter.OTLP,) if any(addresses) else ()

    @property
    def protocol(self) -> Protocol:
        """How spans are sent to a collector."""
        return self.exporter_otlp_traces_protocol or self.exporter_otlp_protocol
