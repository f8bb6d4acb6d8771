"""How the accelerator is used, and how a worker drives it."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from settings.slice import SettingsSlice


class EngineSettings(SettingsSlice):
    """The engine and the loop around it."""

    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="weights and activations")
    step_tokens: PositiveInt = Field(256, description="tokens, padding included, that one engine step aims at")
    claim_seconds: PositiveFloat = Field(4.0, description="work, in estimated seconds, that one claim takes")
    poll_seconds: PositiveFloat = Field(2.0, description="an idle worker looks for work this often, bell or not")
    sweep_seconds: PositiveFloat = Field(5.0, description="how often expired leases and deadlines are swept")
    step_timeout_seconds: PositiveFloat = Field(
        600.0, description="a worker whose engine makes no progress for this long ends itself"
    )
    warmup: bool = Field(True, description="compile the programs before serving rather than on first use")
