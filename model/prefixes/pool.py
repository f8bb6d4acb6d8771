"""The pool of prefix blocks: its size, which is decided when a model is loaded and then fixed, and its memory."""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from checkpoints.files import CheckpointError
from model.architecture.config import DecoderConfig

HOST_BUDGET = 2**30
"""Bytes of cached prefixes in the host's memory, unless the settings say otherwise."""
POOL_CONTEXTS = 16
"""How many prefixes of the greatest length the budget has room for at most: a small model needs no gigabyte."""
PROGRAM_BYTES = 2**30
"""Bytes of a device that are left to programs: their code, temporaries and outputs."""


class ContextTooLongError(CheckpointError):
    """The device has no room for the keys and values of one sequence of the greatest length."""


def bytes_of_block(config: DecoderConfig, itemsize: int, block_tokens: int, head_dim: int | None = None) -> int:
    """Return the bytes of what a block keeps. The parameters are those of :meth:`PoolShape.of`."""
    token_bytes = 2 * config.attention_layers * config.kv_heads * (head_dim or config.head_dim) * itemsize
    return token_bytes * block_tokens + config.state_bytes


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The size of a pool, in blocks."""

    blocks: int  # of the pool: at least as many as the longest sequence takes
    budget: int  # blocks that cached prefixes may keep; sequences under computation may take the others
    longest: int  # blocks of the longest sequence that is served

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        context: int,
        itemsize: int,
        block_tokens: int,
        budget: int | None = None,
        memory: int | None = None,
        head_dim: int | None = None,
    ) -> PoolShape:
        """Return the pool of a model.

        context: tokens of the longest sequence that is served; itemsize: bytes of a number; budget: bytes of cached
        prefixes that the settings allow, None if they leave it open; memory: bytes of the device that the weights leave
        free, None for the host's memory, where blocks that are never used take none; head_dim: numbers that a head
        takes in the pool, None for those of the model. Raises :class:`ContextTooLongError`.
        """
        block_bytes = bytes_of_block(config, itemsize, block_tokens, head_dim)
        longest = -(-context // block_tokens)
        most = POOL_CONTEXTS * longest
        if memory is None:
            allowed = max(1, min((budget or HOST_BUDGET) // block_bytes, most))
            return cls(max(allowed, longest), allowed, longest)
        room = (memory - PROGRAM_BYTES) // block_bytes
        if room < longest:
            raise ContextTooLongError(
                f"the device has room for what is kept of {max(0, room) * block_tokens} tokens beside the "
                f"weights, and the context is {context}: set SCORELINE_CONTEXT_LENGTH to fewer"
            )
        blocks = min(room, most)
        return cls(blocks, min(blocks, max(1, budget // block_bytes)) if budget else blocks, longest)


def untouched_zeros(shape: jax.ShapeDtypeStruct, *, on_host: bool) -> jax.Array:
    """Return zeros that on Linux take none of the host's memory before something else is written to them.

    The compiler fills an array of zeros page by page. All of these pages are given back to the system, which provides
    pages of zeros again where the array is used (madvise(2), MADV_DONTNEED, for private memory of no file).
    """
    array: jax.Array = jnp.zeros(shape.shape, shape.dtype)
    if on_host and sys.platform == "linux":
        begin = array.block_until_ready().unsafe_buffer_pointer()
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), ctypes.c_int(mmap.MADV_DONTNEED))
    return array
