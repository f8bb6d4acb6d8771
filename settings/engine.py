"""How the accelerator is used, and how a worker drives it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt

from settings.slice import SettingsSlice


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is not a power of two")
    return number


class EngineSettings(SettingsSlice):
    """The engine and the loop around it."""

    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="weights and activations")
    step_tokens: Annotated[int, Field(ge=64, le=8_192), AfterValidator(_power_of_two)] = Field(
        256, description="tokens that one engine step computes at most: a power of two, 64 or more"
    )
    multi_item_mask_impl: Literal["auto", "dense", "segment"] = Field(
        "auto", description="mask of packed sequences; `auto` is `segment`"
    )
    multi_item_enable_prefill_extend: bool = Field(True, description="whether `prefill_extend` may be used")
    enable_scoring_cache: bool = Field(True, description="keep the work on a query for whoever scores it again")
    multi_item_algorithm_query_threshold: PositiveInt = Field(
        64, description="`auto` scores items of a shorter query, in tokens, serially"
    )
    max_multi_item_seq_len: PositiveInt = Field(8_192, description="tokens of a packed sequence, at most")
    prefix_cache_bytes: PositiveInt = Field(
        2**30, description="device memory for the keys and values of queries; grows for a longer sequence"
    )
    multi_item_enable_startup_warmup: bool = Field(
        True, description="compile the programs before serving rather than on first use"
    )
    claim_seconds: PositiveFloat = Field(4.0, description="work, in estimated seconds, that one claim takes")
    poll_seconds: PositiveFloat = Field(2.0, description="an idle worker looks for work this often, bell or not")
    sweep_seconds: PositiveFloat = Field(5.0, description="how often expired leases and deadlines are swept")
    step_timeout_seconds: PositiveFloat = Field(
        600.0, description="a worker whose engine makes no progress for this long ends itself"
    )
