"""The engine of a worker: number formats, algorithms, the sizes of steps, the cache of queries."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import NoDecode

from settings.slice import SettingsSlice, split_at_commas


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("it must be a power of two from 64 to 8192")
    return number


Numbers = Annotated[tuple[PositiveInt, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Written as ``64,256``."""


def _each_once(devices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(devices)) < len(devices):
        raise ValueError("a device is named more than once")
    return devices


class EngineSettings(SettingsSlice):
    """How a scoring worker computes."""

    devices: Annotated[
        tuple[NonNegativeInt, ...], NoDecode, BeforeValidator(split_at_commas), AfterValidator(_each_once)
    ] = Field(
        (),
        description="number of the TPU chip or GPU of its host that the worker uses, counted from 0; several, as in "
        "`0,1,2,3`, compute one model together; unset: the first",
    )
    cpu_threads: PositiveInt | None = Field(
        None,
        description="threads with which a CPU computes a step; default: one for a small model, which more make no "
        "faster, and otherwise one for each processor",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="number format of weights and activations; `auto` is `bfloat16`, or `float32` on a processor "
        "without fast bfloat16, where `float32` is faster and takes twice the memory",
    )
    step_tokens: Annotated[int, Field(ge=64, le=8_192), AfterValidator(_power_of_two)] | None = Field(
        None,
        description="tokens that one engine step computes at most: a power of two, 64 or more; "
        "default: 256 on a CPU, and 2,048 elsewhere",
    )
    multi_item_mask_impl: Literal["auto", "dense", "segment"] = Field(
        "auto",
        description="how packed sequences are masked: `dense` by an explicit mask, `segment` by ranges of keys; `auto` "
        "is `segment`, except for short sequences if `multi_item_segment_fallback_threshold` says so",
    )
    multi_item_enable_prefill_extend: bool = Field(True, description="whether `prefill_extend` may be used")
    enable_scoring_cache: bool = Field(True, description="keep the keys and values of a query for later requests")
    multi_item_algorithm_query_threshold: PositiveInt = Field(
        64, description="`auto` scores items of a shorter query, in tokens, serially"
    )
    batch_invariant: bool = Field(
        True,
        description="the bits of a score depend only on its own query and item; off: `auto` picks the algorithm that "
        "it estimates to be fastest, and other items in the same step may change a score's rounding",
    )
    multi_item_algorithm_items_threshold: PositiveInt = Field(
        1, description="without `batch_invariant`, `auto` uses `prefill_extend` for this many items or more"
    )
    multi_item_segment_fallback_threshold: NonNegativeInt = Field(
        0,
        description="with the mask `auto`, packed sequences of at most this many tokens are masked by `dense`, longer "
        "ones by `segment`",
    )
    max_multi_item_seq_len: PositiveInt = Field(8_192, description="tokens of a packed sequence, at most")
    multi_item_precompile_buckets: Numbers = Field(
        (256, 320, 384, 448, 512, 640, 768, 896, 1_024, 1_280, 1_536, 1_792, 2_048, 3_072, 4_096, 6_144),
        description="packed sequences are padded to one of these sizes, in tokens; their programs are compiled while "
        "the worker already serves, if packed sequences may be used",
    )
    multi_item_warmup_chunk_sizes: Numbers = Field(
        (64, 256), description="tokens of the steps that are compiled before serving, besides the largest"
    )
    multi_item_extend_batch_size: PositiveInt | None = Field(
        None, description="items of one engine step at most; default: a quarter of a step's tokens, and 64 at least"
    )
    prefix_cache_bytes: PositiveInt | None = Field(
        None,
        description="memory for the keys and values of cached queries; default: 1 GiB on a CPU, and elsewhere what the "
        "weights leave free",
    )
    multi_item_prefill_extend_cache_timeout: PositiveFloat = Field(
        600.0, description="the keys and values of a query are dropped this many seconds after their last use"
    )
    multi_item_enable_startup_warmup: bool = Field(
        True,
        description="compile the programs before serving rather than on first use; devices that compute whole steps "
        "compile the few core programs in any case, to check them",
    )
