"""The HTTP front end."""

import os
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from settings.errors.mistakes import setting_error, variable_of
from settings.slice import SettingsSlice


class ApiSettings(SettingsSlice):
    """Where the API listens, how long it waits, and when it refuses further work."""

    host: str = Field(
        "127.0.0.1",
        description="address to bind; callers need keys, except those of `scoreline up` on a loopback address",
    )
    port: int = Field(8000, ge=0, le=65535, description="port to bind")
    api_processes: PositiveInt | Literal["auto"] = Field(
        1, description="processes that serve the port together; `auto`: one for each core"
    )
    drain_seconds: NonNegativeFloat = Field(
        0.0,
        description="how long the API goes on taking requests when it is told to stop, while `/livez` answers 503 and "
        "every answer ends its connection; for load balancers that need the time, where no `preStop` hook waits",
    )
    call_timeout_seconds: PositiveFloat = Field(60.0, description="how long `/v1/score` waits unless told otherwise")
    max_call_timeout_seconds: PositiveFloat = Field(600.0, description="longest wait that a caller may ask for")
    max_waiting_chunks: PositiveInt = Field(
        5_000_000,
        description="while more chunks than this wait, those of unfinished uploads included, `/v1/jobs` answers 503 "
        "`overloaded`, except to tenants with few of them",
    )
    max_waiting_seconds: PositiveFloat | None = Field(
        None,
        description="while the waiting work would take the workers longer than this, `/v1/jobs` answers 503 "
        "`overloaded`; unset: no limit",
    )
    models_bytes: PositiveInt = Field(
        2**29,
        description="memory for the tokenizers of several models (docs/several-models.md), in each process: those used "
        "least lately make room for others, and are loaded again when requests name them",
    )
    waiter_poll_seconds: PositiveFloat = Field(
        1.0, description="how often a process asks the database which awaited jobs have ended, as notices can be lost"
    )
    batch_poll_seconds: PositiveFloat = Field(
        1.0, description="how often a process asks the database which batches of files have something to do"
    )
    event_heartbeat_seconds: PositiveFloat = Field(
        15.0, description="how often a stream of events on which nothing happens gets a comment as a sign of life"
    )
    max_event_stream_seconds: PositiveFloat = Field(
        3_600.0, description="a stream of events is ended after this; its client connects again and continues"
    )

    @model_validator(mode="after")
    def _call_ends_within_the_maximum(self) -> Self:
        if self.call_timeout_seconds > self.max_call_timeout_seconds:
            expected = (
                f"it must be at most {variable_of('max_call_timeout_seconds')}, which is "
                f"{self.max_call_timeout_seconds:g}; lower the one or raise the other"
            )
            raise setting_error("call_timeout_seconds", f"{self.call_timeout_seconds:g}", expected)
        return self

    @property
    def process_count(self) -> int:
        """The number of processes that serve the port."""
        return usable_cores() if self.api_processes == "auto" else self.api_processes


def usable_cores() -> int:
    """The number of cores that this process may run on. A limit of a container's processor time does not lower it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
