"""Weights that go from a checkpoint to several chips, each of which gets its own part and nothing else.

A tensor is read from the file once, some rows at a time, since its bytes belong to the fingerprint. Each chip's part of
these rows goes into a buffer of the host that is as large as the chip's part of the parameter. A parameter that is read
is sent to the chips before the next one is read, so the host does not hold the whole model either.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy.typing as npt
from jax import Array

from model.architecture.decoder import Decoder
from model.architecture.weights import Parameter, buffer, params
from model.chips.axes import divided_axis, parameter_axes
from model.chips.mesh import Chips
from model.chips.shares import Ranges, Shares


class DividedParameter:
    """A :class:`model.architecture.weights.Destination` on several chips."""

    def __init__(self, chips: Chips, shares: Shares, parameter: Parameter) -> None:
        self._chips = chips
        self._parameter = parameter
        axes = parameter_axes(parameter.path)
        self._sharding = chips.sharding(axes)
        self._axis = divided_axis(axes[len(parameter.stack) :])  # of a tensor, in the decoder's orientation
        if self._axis is None:
            self._ranges: list[Ranges] = []
            self._parts = [buffer(parameter, parameter.own_shape)]
            return
        size = parameter.own_shape[self._axis]
        if "key_heads" in axes:
            self._ranges = _of_key_heads(shares, chips.count)
        else:
            self._ranges = shares.channels if "channels" in axes else _equal(size, chips.count)
        self._parts = []
        for ranges in self._ranges:
            shape = list(parameter.own_shape)
            shape[self._axis] = sum(end - begin for begin, end in ranges)
            self._parts.append(buffer(parameter, tuple(shape)))

    def write(self, number: int, rows: slice, tensor: npt.NDArray[Any]) -> None:
        """See :class:`model.architecture.weights.Destination`."""
        transposed = self._parameter.transposed
        tensor = tensor.astype(self._parts[0].dtype, copy=False)  # faster before it is transposed than while it is
        parts = [part[number].T if transposed else part[number] for part in self._parts]
        if self._axis is None:
            parts[0][rows] = tensor
            return
        axis_in_file = tensor.ndim - 1 - self._axis if transposed else self._axis
        for part, ranges in zip(parts, self._ranges, strict=True):
            place = 0
            for begin, end in ranges:
                own = slice(place, place + end - begin)
                place = own.stop
                if axis_in_file:
                    part[rows, own] = tensor[:, begin:end]
                    continue
                first, last = max(begin, rows.start), min(end, rows.stop)
                if first < last:
                    target = slice(own.start + first - begin, own.start + last - begin)
                    part[target] = tensor[first - rows.start : last - rows.start]

    def value(self) -> Array:
        """See :class:`model.architecture.weights.Destination`: the parameter on its chips."""
        stack, devices = self._parameter.stack, self._chips.devices
        parts = [part.reshape(*stack, *part.shape[1:]) for part in self._parts]
        if self._axis is None:
            parts = parts * len(devices)
        placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        jax.block_until_ready(placed)  # type: ignore[no-untyped-call]  # else the host would hold the next ones, too
        shape = list(parts[0].shape)
        if self._axis is not None:
            shape[self._axis + len(stack)] *= len(devices)
        return jax.make_array_from_single_device_arrays(tuple(shape), self._sharding, placed)


def bytes_of_a_chip(decoder: Decoder, chips: Chips) -> int:
    """Return the bytes of the parameters that each chip has."""

    def own(path: tuple[str, ...], size: int) -> int:
        return size if divided_axis(parameter_axes(path)) is None else size // chips.count

    return sum(own(path, param.get_value().nbytes) for path, param in params(decoder).items())


def _equal(size: int, chips: int) -> list[Ranges]:
    own = size // chips
    return [((chip * own, (chip + 1) * own),) for chip in range(chips)]


def _of_key_heads(shares: Shares, chips: int) -> list[Ranges]:
    """Return the key heads of each chip as ranges of the rows of a projection."""
    D, own = shares.own.head_dim, shares.own.kv_heads
    heads = [shares.key_heads[chip * own : (chip + 1) * own] for chip in range(chips)]
    return [tuple((head * D, (head + 1) * D) for head in of_chip) for of_chip in heads]
