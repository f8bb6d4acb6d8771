"""What a kind of program consists of, in one module each: key, shapes of arguments, traced function and known answer.

A kind is a frozen dataclass, of which each instance is the key of one program. Other parts that differ between
programs, such as when they are called, are no part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from model.checks.expected import Answering

D = TypeVar("D", contravariant=True)

Program = Callable[..., tuple[Array, ...]]


class Source(NamedTuple):
    """What a program is compiled from."""

    function: Program
    arguments: tuple[Any, ...]
    """Arrays, or their shapes."""
    donated: tuple[int, ...] = ()
    """Numbers of the arguments whose memory the outputs may take."""


class ProgramKey(Answering[D], Protocol[D]):
    """What a program of a decoder is compiled for."""

    def __hash__(self) -> int:
        """Keys that are equal have the same program: their own hash takes the place of this one."""
        return object.__hash__(self)

    def source(self, decoder: D) -> Source:
        """Return the function of the program, which is pure, and the shapes of its arguments."""


def int32(*sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument of int32."""
    return array(jnp.int32, *sizes)


def float32(*sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument of float32."""
    return array(jnp.float32, *sizes)


def array(dtype: DTypeLike, *sizes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument."""
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]
