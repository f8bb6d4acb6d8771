"""The chips of one model as a mesh, and programs that run on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding

from model.chips.axes import TENSOR, WHOLE, Axes, partition


@dataclass(frozen=True, slots=True)
class Chips:
    """Several chips of one host that compute one model. All of them run the same program, each on its own arrays."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: Sequence[jax.Device]) -> Chips:
        """Return the mesh of these chips: one axis, in their order."""
        return cls(Mesh(np.array(devices), (TENSOR,)))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.mesh.size

    @property
    def devices(self) -> list[jax.Device]:
        """The chips in the order of their shares."""
        return list(self.mesh.devices.flat)

    def sharding(self, axes: Axes) -> NamedSharding:
        """Return where the parts of an array with these axes are."""
        return NamedSharding(self.mesh, partition(axes))

    def shapes(self, arrays: Sequence[Any], axes: Sequence[Axes]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shapes of arrays and where their parts are. Those behind the last of ``axes`` are whole."""
        return tuple(
            jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self.sharding(of_array))  # type: ignore[no-untyped-call]
            for array, of_array in zip(arrays, _filled(axes, len(arrays)), strict=True)
        )

    def program(self, function: Any, arguments: int, axes: Sequence[Axes], outputs: Sequence[Axes]) -> Any:
        """Return a function of whole arrays that runs ``function`` on every chip, with the chip's parts of them.

        Nothing in it is divided by the compiler, so a collective is where the code says so, and nowhere else.
        axes: of the first of its ``arguments``; those behind them are whole.
        """
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(map(partition, _filled(axes, arguments))),
            out_specs=tuple(map(partition, outputs)),
            check_vma=False,  # kernels do not say how their outputs differ from chip to chip
        )

    def put(self, array: Any, axes: Axes) -> Array:
        """Return an array whose parts are on their chips. The parts are taken on the host, if it is not there yet."""
        sharding = self.sharding(axes)
        is_there = isinstance(array, jax.ShapeDtypeStruct) or getattr(array, "sharding", None) == sharding
        return array if is_there else jax.device_put(array, sharding)  # type: ignore[no-any-return]

    def zeros(self, shape: jax.ShapeDtypeStruct, axes: Axes) -> Array:
        """Return zeros, of which each chip makes its own part."""
        return jnp.zeros(shape.shape, shape.dtype, device=self.sharding(axes))


def total(part: Array) -> Array:
    """Return the sum of what all chips have, by an all-reduce. Only for programs of several chips."""
    summed: Array = lax.psum(part, TENSOR)  # type: ignore[no-untyped-call]
    return summed


def _filled(axes: Sequence[Axes], count: int) -> list[Axes]:
    return [*axes, *[WHOLE] * (count - len(axes))]
