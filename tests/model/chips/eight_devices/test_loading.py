"""Each device gets its own part of the weights, and never a whole one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.architecture import weights
from model.chips.axes import divided_axis, parameter_axes
from model.chips.loading import DividedParameter, bytes_of_a_chip
from model.chips.mesh import Chips
from model.chips.shares import Shares
from model.whole_steps.forward import WholeStepForward
from tests.model import engines
from tests.model.chips.eight_devices.conftest import MODELS, SHARED, STEP, platform


def held(device: jax.Device) -> int:
    """The bytes of all arrays on a device."""
    shards = {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in jax.live_arrays()  # type: ignore[no-untyped-call]
        for shard in array.addressable_shards
        if shard.device == device
    }
    return sum(shards.values())


@pytest.mark.parametrize(("name", "chips"), SHARED)
def test_each_device_has_its_part_of_every_weight(
    name: str, chips: int, directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mesh = MODELS[name], Chips.of(jax.devices()[:chips])
    shares = Shares.of(config, chips)
    whole, fingerprint = weights.load(directory(name), config, "float32", tied_as_rows=True)
    gc.collect()  # other tests leave arrays behind
    before = [held(device) for device in mesh.devices]
    most = [0] * chips

    def measure() -> None:
        for number, device in enumerate(mesh.devices):
            most[number] = max(most[number], held(device) - before[number])

    put = jax.device_put

    def put_and_measured(*arguments: Any) -> jax.Array:
        placed: jax.Array = put(*arguments)
        measure()
        return placed

    monkeypatch.setattr(jax, "device_put", put_and_measured)
    found, same = weights.load(
        directory(name),
        config,
        "float32",
        lambda done, total: measure(),
        tied_as_rows=True,
        computed=shares.whole,
        destination=partial(DividedParameter, mesh, shares),
    )
    assert same == fingerprint, "the whole file was read"
    share = bytes_of_a_chip(found, mesh)
    assert share < weights.size_in_bytes(whole) / chips * 1.6, "what is not divided is small"
    assert [held(device) - before[n] for n, device in enumerate(mesh.devices)] == [share] * chips
    assert max(most) <= share, "nothing else was on a device meanwhile"
    for path, param in weights.params(found).items():
        axis, array = divided_axis(parameter_axes(path)), param.get_value()
        expected = np.asarray(weights.params(whole)[path].get_value())
        if axis is not None and "key_heads" in parameter_axes(path):
            heads = [np.arange(head * config.head_dim, (head + 1) * config.head_dim) for head in shares.key_heads]
            expected = np.take(expected, np.concatenate(heads), axis=axis)
        if axis is not None and "channels" in parameter_axes(path):
            own = [np.arange(begin, end) for ranges in shares.channels for begin, end in ranges]
            expected = np.take(expected, np.concatenate(own), axis=axis)
        assert array.shape == expected.shape
        for chip, shard in enumerate(sorted(array.addressable_shards, key=lambda shard: shard.device.id)):
            part = expected if axis is None else np.array_split(expected, chips, axis=axis)[chip]
            assert np.array_equal(np.asarray(shard.data), part), path


def test_an_engine_holds_only_its_parts_and_the_pool(directory: Callable[[str], Path]) -> None:
    name, chips = "eight heads", 4
    mesh, config = Chips.of(jax.devices()[:chips]), MODELS[name]
    whole, _ = weights.load(directory(name), config, "float32", tied_as_rows=True)
    gc.collect()  # other tests leave arrays behind
    before = [held(device) for device in mesh.devices]
    engine = engines.load(directory(name), "float32", platform=platform(chips), step_tokens=STEP)
    assert isinstance(engine.forward, WholeStepForward)
    keys = engine.forward.pool.keys
    parts = [shard.data for shard in keys.addressable_shards]
    assert [part.shape[1] for part in parts] == [config.kv_heads // chips] * chips
    share = bytes_of_a_chip(whole, mesh) + 2 * keys.nbytes // chips
    assert [held(device) - before[n] for n, device in enumerate(mesh.devices)] == [share] * chips
