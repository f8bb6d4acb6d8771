"""The devices of this worker, among those of its host: they are chosen before jax is imported, and then held.

A process that imports jax takes every accelerator that it sees. So that several workers can share a host, each of them
sees its own devices only. The variables are those of libtpu and of CUDA, which jax's own tests with several processes
use. Most workers have one device. Those of a worker that has several compute one model together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from workers.engine_loop.libraries import fault_of, versions_of

if TYPE_CHECKING:
    import jax

_VISIBLE_GPUS, _VISIBLE_TPUS = "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"
_FIRST_TPU_PORT = 8476  # libtpu's default; processes of one host need different ones
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""How so many chips of a host lie. For any other number, libtpu is left to find out."""


class DeviceError(Exception):
    """The device that the settings ask for can't be used. The message is one line for the operator."""


def show_only(devices: Sequence[int], environment: MutableMapping[str, str]) -> None:
    """Let the accelerator libraries of this process see some devices. To be called before jax is imported.

    devices: their numbers among those of the host, or among those that ``CUDA_VISIBLE_DEVICES`` leaves. Raises
    DeviceError.
    """
    if (visible := environment.get(_VISIBLE_GPUS)) is not None:
        left = _entries(visible)
        for device in devices:
            if device >= len(left):
                raise _absent(device, f"{_VISIBLE_GPUS} leaves {len(left)}, numbered from 0")
        environment[_VISIBLE_GPUS] = ",".join(left[device] for device in devices)
    else:
        environment[_VISIBLE_GPUS] = ",".join(map(str, devices))
    environment[_VISIBLE_TPUS] = ",".join(map(str, devices))
    if (bounds := _BOUNDS.get(len(devices))) is not None:
        environment["TPU_CHIPS_PER_PROCESS_BOUNDS"] = bounds
        environment["TPU_PROCESS_BOUNDS"] = "1,1,1"
    environment["TPU_PROCESS_PORT"] = str(_FIRST_TPU_PORT + devices[0])


def take(devices: Sequence[int]) -> tuple[list[jax.Device], ExitStack]:
    """Return the devices of this worker, and what holds them for as long as that is open.

    devices: as for :func:`show_only`, which must have been called; empty: the first one. A CPU is held only if the
    settings name it, because the workers of a host may share its processors. Raises DeviceError, also for versions of
    libraries that are known to compute wrong results.
    """
    import jax

    try:
        found = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter for a kind that jax knows, but was not built for
        wanted = os.environ.get("JAX_PLATFORMS")
        asked = f"JAX_PLATFORMS is {wanted!r}; unset it, or install jax for this kind of device" if wanted else ""
        raise DeviceError(f"jax finds no device: {' '.join([*str(error).split(), asked])}") from error
    if (fault := fault_of(versions_of(found[0].platform))) is not None:
        raise DeviceError(fault)
    is_cpu = found[0].platform == "cpu"
    # Accelerators are numbered anew in a process that sees only some of them; the virtual devices of a CPU are not.
    places = devices if is_cpu and devices else range(max(1, len(devices)))
    for number, place in enumerate(places):
        if place >= len(found):
            message = f"jax finds {len(found)} here, of the kind {found[0].platform}, numbered from 0"
            raise _absent(devices[number], message)
    taken = [found[place] for place in places]
    jax.config.update("jax_default_device", taken[0])  # type: ignore[no-untyped-call]
    with ExitStack() as held:
        for name in devices if is_cpu else names(taken[0].platform, len(taken), os.environ):
            if (holder := hold(taken[0].platform, name)) is not None:
                held.enter_context(holder)
        return taken, held.pop_all()


def _absent(device: int, message: str) -> DeviceError:
    return DeviceError(f"SCORELINE_DEVICES={device}: there is no such device; {message}")


def names(platform: str, count: int, environment: Mapping[str, str]) -> list[str]:
    """Return what the host calls the first accelerators that this process sees, of this kind and so many."""
    visible = _entries(environment.get(_VISIBLE_TPUS if platform == "tpu" else _VISIBLE_GPUS, ""))
    return visible[:count] if len(visible) >= count else [str(place) for place in range(count)]


def _entries(visible: str) -> list[str]:
    return [entry.strip() for entry in visible.split(",") if entry.strip()]


def hold(platform: str, device: int | str) -> socket.socket | None:
    """Take a name that only one process of a host can have, and that is free again when the process ends.

    The name is that of an abstract socket of Linux. Elsewhere, nothing is held.
    """
    name = f"\0scoreline-device-{platform}-{device}"
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(name)
    except OSError as error:
        holder.close()
        if not os.path.exists("/proc/self"):
            return None
        message = "another worker of this host has it; give each worker its own by SCORELINE_DEVICES"
        raise DeviceError(f"device {device} of the kind {platform} is taken: {message}") from error
    return holder
