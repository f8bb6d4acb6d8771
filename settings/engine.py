"""How the accelerator is used, and how a worker drives it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is not a power of two")
    return number


Numbers = Annotated[tuple[PositiveInt, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written ``64,256``."""


class EngineSettings(SettingsSlice):
    """The engine and the loop around it."""

    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="weights and activations; `auto` is `bfloat16`, or `float32` on a processor that gains nothing "
        "from bf16: quicker there, in twice the memory",
    )
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
    batch_invariant: bool = Field(
        True,
        description="a score's bits depend on its own query and item alone; off: `auto` picks whatever it estimates to "
        "be fastest, packed sequences among it, and company may show in rounding",
    )
    multi_item_algorithm_items_threshold: PositiveInt = Field(
        1, description="without `batch_invariant`, `auto` uses `prefill_extend` from so many items on"
    )
    multi_item_segment_fallback_threshold: NonNegativeInt = Field(
        0, description="`auto` masks packed sequences of at most so many tokens; longer ones are `segment`"
    )
    max_multi_item_seq_len: PositiveInt = Field(8_192, description="tokens of a packed sequence, at most")
    multi_item_precompile_buckets: Numbers = Field(
        (256, 320, 384, 448, 512, 640, 768, 896, 1_024, 1_280, 1_536, 1_792, 2_048, 3_072, 4_096, 6_144),
        description="sizes in tokens that packed sequences are padded to, up to their longest; compiled beside the "
        "first work where such sequences may be used",
    )
    multi_item_warmup_chunk_sizes: Numbers = Field(
        (64, 256), description="tokens of the steps that are compiled before serving, besides the largest"
    )
    multi_item_extend_batch_size: PositiveInt | None = Field(
        None, description="items of one engine step at most; default: a quarter of `step_tokens`, and 64 at least"
    )
    prefix_cache_bytes: PositiveInt = Field(
        2**30, description="device memory for the keys and values of queries; grows for a longer sequence"
    )
    multi_item_prefill_extend_cache_timeout: PositiveFloat = Field(
        600.0, description="seconds after its last use that the work on a query is forgotten"
    )
    multi_item_enable_startup_warmup: bool = Field(
        True, description="compile the programs before serving rather than on first use"
    )
    claim_seconds: PositiveFloat = Field(4.0, description="work, in estimated seconds, that one claim takes")
    poll_seconds: PositiveFloat = Field(2.0, description="an idle worker looks for work this often, bell or not")
    sweep_seconds: PositiveFloat = Field(5.0, description="how often expired leases and deadlines are swept")
    worker_metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port at which a worker offers `/metrics`; unset: none"
    )
    worker_metrics_host: str = Field("127.0.0.1", description="address that it binds for that")
    step_timeout_seconds: PositiveFloat = Field(
        600.0, description="a worker whose engine makes no progress for this long ends itself"
    )
