"""Where jobs live, and how long things may take or be kept there."""

from pydantic import Field, PositiveFloat, PositiveInt

from settings.slice import SettingsSlice


class StoreSettings(SettingsSlice):
    """The durable store: SQLite or PostgreSQL."""

    database_url: str = Field(
        "sqlite:///.scoreline/scoreline.db",
        description="SQLAlchemy URL; `sqlite:///PATH` or `postgresql+psycopg://USER@HOST/NAME`",
    )
    lease_seconds: PositiveFloat = Field(
        60.0, description="a claim whose worker is silent for this long is given to another worker"
    )
    upload_timeout_seconds: PositiveFloat = Field(
        60.0,
        description="an upload that is silent for this long, its client or the process that receives it, is given up",
    )
    max_attempts: PositiveInt = Field(
        3, description="how often a chunk may take its worker down, or fail, before its job fails"
    )
    slack_interactive_seconds: float = Field(0.0, ge=0, description="added to a job's accept time to order it")
    slack_normal_seconds: float = Field(5.0, ge=0, description="the same for priority `normal`")
    slack_bulk_seconds: float = Field(300.0, ge=0, description="the same for priority `bulk`")
    retention_seconds: PositiveFloat = Field(
        7 * 86400.0, description="finished jobs, with inputs and scores, are deleted after this"
    )
    call_retention_seconds: PositiveFloat = Field(900.0, description="the same for what `/v1/score` leaves behind")
    share_prefixes: bool = Field(
        False,
        description="the work on a query serves all tenants that send the same one; off: each tenant's alone, so that "
        "nobody can tell by the time it takes what others ask",
    )
    idempotency_seconds: PositiveFloat = Field(86400.0, description="how long an Idempotency-Key is remembered")
