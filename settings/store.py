"""The store: where jobs are kept, for how long, and when a silent process is given up."""

from pydantic import Field, PositiveFloat, PositiveInt

from settings.slice import SettingsSlice


class StoreSettings(SettingsSlice):
    """The durable store: SQLite or PostgreSQL."""

    database_url: str = Field(
        "sqlite:///.scoreline/scoreline.db",
        description="SQLAlchemy URL; `sqlite:///PATH` or `postgresql+psycopg://USER@HOST/NAME`",
    )
    statement_seconds: PositiveFloat = Field(
        8.0,
        description="how long PostgreSQL may take for a statement of a request or a worker; after this it counts as "
        "away, and requests are answered with 503 `storage_unavailable`",
    )
    long_statement_seconds: PositiveFloat = Field(
        600.0,
        description="the same, for a statement whose work grows with a job or with the database, such as a deletion, "
        "a sweep or a migration",
    )
    lease_seconds: float = Field(
        60.0,
        ge=0.1,
        description="how long a lease lasts: work whose worker is silent for this long is given to another worker; "
        "20 in `scoreline up`",
    )
    upload_timeout_seconds: PositiveFloat = Field(
        60.0,
        description="an upload is given up if its client, or the process that receives it, is silent for this long",
    )
    sweep_seconds: PositiveFloat = Field(
        5.0, description="how often a process repairs what dead processes and passed deadlines have left"
    )
    worker_fresh_seconds: float = Field(
        20.0, ge=1.0, description="a worker not seen for this long does not count as live"
    )
    max_attempts: PositiveInt = Field(
        3, description="how often a chunk may take its worker down, or fail, before its job fails"
    )
    slack_interactive_seconds: float = Field(
        0.0,
        ge=0,
        description="seconds from acceptance until an `interactive` job is due; workers begin with what is due first",
    )
    slack_normal_seconds: float = Field(5.0, ge=0, description="seconds from acceptance until a `normal` job is due")
    slack_bulk_seconds: float = Field(300.0, ge=0, description="seconds from acceptance until a `bulk` job is due")
    retention_seconds: PositiveFloat = Field(
        7 * 86400.0, description="finished jobs, with inputs and scores, are deleted after this"
    )
    call_retention_seconds: PositiveFloat = Field(
        900.0,
        description="finished `/v1/score` calls are deleted after this; a call with an Idempotency-Key is kept at "
        "least until its key expires",
    )
    file_retention_seconds: PositiveFloat = Field(
        30 * 86400.0,
        description="files that no batch reads are deleted after this; a batch and its files are deleted "
        "`retention_seconds` after its end",
    )
    share_prefixes: bool = Field(
        False,
        description="tenants that send the same query share the work on it; off: no tenant can tell from response "
        "times which queries other tenants send",
    )
    reuse_scores_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the scores of jobs are kept, under hashes, so that an equal item of a later job is not "
        "computed again; 0: none are kept",
    )
    max_kept_scores: PositiveInt = Field(
        10_000_000, description="items whose scores are kept, at most; the oldest ones give way"
    )
    idempotency_seconds: PositiveFloat = Field(86400.0, description="how long an Idempotency-Key is remembered")
