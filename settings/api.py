"""The HTTP front end."""

from pydantic import Field, PositiveFloat, PositiveInt

from settings.slice import SettingsSlice


class ApiSettings(SettingsSlice):
    """Where it listens and how long it waits."""

    host: str = Field(
        "127.0.0.1",
        description="address to bind; callers need keys, but for those of `scoreline up` on a loopback address",
    )
    port: int = Field(8000, ge=0, le=65535, description="port to bind")
    max_body_bytes: PositiveInt = Field(64 * 1024 * 1024, description="largest request body")
    max_upload_bytes: PositiveInt = Field(16 * 2**30, description="largest job sent as JSON lines, unpacked")
    max_line_bytes: PositiveInt = Field(4 * 2**20, description="longest of its lines")
    call_timeout_seconds: PositiveFloat = Field(60.0, description="how long `/v1/score` waits unless told otherwise")
    max_call_timeout_seconds: PositiveFloat = Field(600.0, description="how long a caller may ask it to wait")
    worker_fresh_seconds: PositiveFloat = Field(
        20.0, description="a worker not seen for this long does not count as live"
    )
    max_waiting_chunks: PositiveInt = Field(
        5_000_000, description="`/v1/jobs` is answered with 503 `overloaded` while more chunks than this wait"
    )
    max_waiting_seconds: PositiveFloat | None = Field(
        None, description="the same while what waits would take the workers longer than this; default: no limit"
    )
    waiter_poll_seconds: PositiveFloat = Field(
        1.0, description="one query for all waiters of a process, in case a notice was lost"
    )
