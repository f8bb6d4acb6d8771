"""The differences between devices. A :class:`Platform` is made once, and handed down to all that depends on the device.

Nothing else asks which devices there are: a program may also be compiled for a device that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from model.attention.contract import WholeStepAttention
from model.attention.cudnn import cudnn_or_xla
from model.attention.tpu.attention import TPUAttention
from model.attention.xla import XLAAttention
from model.chips.mesh import Chips
from model.layers.tpu.projection import LARGE, SMALL
from scoring.planning.estimates import Rates

Served = Literal["bfloat16", "float32"]

_PROCESSOR = Path("/proc/cpuinfo")

_SAME_PRODUCTS: Mapping[str, str | bool] = {
    "xla_gpu_deterministic_ops": True,  # nothing is tuned by its time, and no operation adds in any order that comes
    "xla_gpu_autotune_level": "0",  # the same for products
    "xla_gpu_enable_triton_gemm": False,  # products are cuBLAS's first choice: Triton's is slow if it is not tuned
}
"""Options by which two workers with GPUs of one kind compile the same programs, so that they compute the same bits."""


@dataclass(frozen=True, slots=True)
class Platform:
    """How a kind of device computes."""

    name: str  # jax's: "cpu", "gpu" or "tpu"
    device_kind: str
    memory: int | None  # bytes of a device that arrays and programs may take; None: the host's memory, or not known
    rates: Rates  # for the planner
    faster_dtype: Served
    whole_steps: bool  # a step is one program; otherwise a layer is a few programs
    default_step_tokens: int
    largest_block: int | None  # tokens of a block of the pool; None: as many as a step has
    equal_sizes: int  # the bits of a row are the same in all steps of at most so many tokens; 0: in none
    tied_as_rows: bool  # a tied embedding is stored [vocabulary, width]; otherwise [width, vocabulary], as the head
    bf16_as_integers: bool  # the pool holds the bits of bf16 as uint16
    compiler_options: Mapping[str, str | bool]
    chips: Chips | None = None  # that compute one model together; None: a device computes it alone

    @classmethod
    def of(cls, device: jax.Device, memory: int | None = None, chips: Chips | None = None) -> Platform:
        """Return the platform of a device, which may be one of a topology that programs are only compiled for.

        memory: bytes, for a device that is not there to be asked. chips: several devices of this kind that compute one
        model together. Virtual devices of a CPU compute it as accelerators do, so that this can be tried without any.
        """
        name = device.platform
        if name == "cpu" and chips is not None:
            return replace(
                cls.of(device),
                whole_steps=True,
                equal_sizes=0,
                tied_as_rows=True,
                bf16_as_integers=False,
                chips=chips,
            )
        if name == "cpu":
            return cls(
                name,
                device.device_kind,
                None,
                Rates.of(name),
                faster_dtype="bfloat16" if _may_gain_from_bf16() else "float32",
                whole_steps=False,  # programs of a layer are compiled in seconds
                default_step_tokens=256,
                largest_block=None,
                equal_sizes=256,  # at 512 rows, bits of a product of width 1,024 were seen to differ
                tied_as_rows=False,  # a product with an untransposed right-hand side is faster
                bf16_as_integers=True,  # the compiler slices bf16 by converting the whole array to float32
                # Compiling takes a third less time, and programs are no slower: products are library calls.
                compiler_options={"xla_backend_optimization_level": "1"},
            )
        return cls(
            name,
            device.device_kind,
            memory if memory is not None else _memory(device),
            Rates.of(name),
            faster_dtype="bfloat16",
            whole_steps=True,
            default_step_tokens=2_048,
            largest_block=256,
            equal_sizes=0,
            tied_as_rows=True,  # XLA copies the whole embedding to take columns of it
            bf16_as_integers=False,
            compiler_options=_SAME_PRODUCTS if name == "gpu" else {},
            chips=chips,
        )

    def __str__(self) -> str:
        together = "" if self.chips is None else f", {self.chips.count} devices"
        return f"{self.name}: {self.device_kind}{together}"

    def serving_dtype(self, wanted: Literal["auto", "bfloat16", "float32"]) -> Served:
        """Return the dtype in which a model is served, by jax's name for it."""
        return self.faster_dtype if wanted == "auto" else wanted

    def step_tokens(self, wanted: int | None) -> int:
        """Return the tokens of the largest step, where the settings want so many, or leave it open."""
        return wanted or self.default_step_tokens

    def block_tokens(self, step_tokens: int) -> int:
        """Return the tokens of a block of the pool. A step has one such block of tokens, or a multiple."""
        return min(self.largest_block or step_tokens, step_tokens)

    def has_row_floor(self, step_tokens: int) -> bool:
        """Return whether a row's bits are the same from :data:`model.buckets.ROW_FLOOR` rows to a step's."""
        return step_tokens <= self.equal_sizes

    def pool_dtype(self, dtype: DTypeLike) -> jnp.dtype:
        """Return the dtype of the pool for a model that is served in ``dtype``."""
        served = jnp.dtype(dtype)
        return jnp.dtype(jnp.uint16) if self.bf16_as_integers and served == jnp.bfloat16 else served

    def whole_step_attention(
        self, dtype: DTypeLike, head_dim: int, *, plain: bool = False, cap: float | None = None
    ) -> WholeStepAttention:
        """Return the attention of whole steps for a model that is served in ``dtype``: plain XLA without a kernel.

        The kernels multiply in bf16. head_dim: numbers of a head, since cuDNN refuses some. plain: whether no kernel
        knows what the model needs (:attr:`model.architecture.config.DecoderConfig.has_plain_attention`). cap: of
        scores, which none knows.
        """
        served = jnp.dtype(dtype)
        if plain or cap is not None:
            return XLAAttention(cap)
        if self.name == "tpu" and served == jnp.bfloat16:
            return TPUAttention(room=LARGE if "lite" in self.device_kind else SMALL)  # as v5e and v6e are called
        return cudnn_or_xla(served, head_dim) if self.name == "gpu" else XLAAttention()

    def pool_head_dim(self, dtype: DTypeLike, head_dim: int, *, plain: bool = False) -> int:
        """Return how many numbers a head takes in the pool of a model that is served in ``dtype``."""
        if not self.whole_steps:
            return head_dim
        return self.whole_step_attention(dtype, head_dim, plain=plain).pool_head_dim(head_dim)


def _memory(device: jax.Device) -> int | None:
    """Return the bytes that a device lets arrays and programs take, None if it does not say."""
    try:
        stats = device.memory_stats()
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):  # it is only known by its topology
        return None
    return None if stats is None else stats.get("bytes_limit")


def _may_gain_from_bf16() -> bool:
    """Return whether products of bf16 may be faster than those of float32 here; True if nothing is known."""
    try:
        lines = _PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    return may_gain_from_bf16(lines)


def may_gain_from_bf16(cpuinfo: list[str]) -> bool:
    """Return the same for the lines of ``/proc/cpuinfo``, where x86 processors alone list their features as ``flags``.

    On the others, float32 takes 0.55 to 0.8 of the time (docs/log.md). AMX tiles are several times as fast, and
    ``avx512_bf16`` is twice as fast on AMD. On Intel processors without tiles it is no faster than float32: their
    vector units add as many products per cycle of either.
    """
    fields = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in cpuinfo)}
    flags = fields.get("flags")
    if flags is None or "amx_bf16" in flags:
        return True
    return "avx512_bf16" in flags and "GenuineIntel" not in fields.get("vendor_id", [])
