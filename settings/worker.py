"""The scoring worker around its engine: how much work it takes, how often it looks for it, its metrics."""

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas


class WorkerSettings(SettingsSlice):
    """How a scoring worker takes work."""

    claim_seconds: PositiveFloat = Field(4.0, description="estimated seconds of work that one claim takes")
    poll_seconds: PositiveFloat = Field(
        2.0, description="an idle worker looks for work this often, even if no bell has rung"
    )
    worker_metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port at which a worker offers `/metrics`; unset: none"
    )
    worker_metrics_host: str = Field("127.0.0.1", description="address to bind for these metrics")
    step_timeout_seconds: PositiveFloat = Field(
        600.0,
        description="a worker whose engine makes no progress for this long ends itself; one that loads a "
        "model of the catalogue has three times as long",
    )
    worker_models: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_at_commas)] = Field(
        (),
        description="models of the catalogue that the worker serves (docs/several-models.md), as in `triage,rerank`; "
        "unset: that of `SCORELINE_MODEL`",
    )
    worker_models_bytes: PositiveInt | None = Field(
        None,
        description="memory that these models may take together, with what is kept of queries; those that don't fit "
        "take turns. A model that takes more than is set is not loaded. Default: half of the memory of the host or "
        "container on a CPU, and elsewhere the device's",
    )
