"""A made-up accelerator: programs take time on a device of their own, one after another, and no processor.

It shows whether the host keeps a device busy. A call returns at once, with arrays that are ready when the program has
had its turn and its time. They are zeros.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from model.executable_table import ExecutableTable
from model.programs.gathering import GatherKey
from model.programs.label_head import HeadKey
from model.programs.target_head import TargetHeadKey
from model.whole_steps.decoder import StackedDecoder
from model.whole_steps.forward import Key
from tools.tpu.programs import OnDevice

SHARES: Mapping[type[Any], float] = {HeadKey: 0.05, TargetHeadKey: 0.05, GatherKey: 0.002}
"""What programs take that are no steps, of the time of one."""


class OwnDevice:
    """Runs programs in the order of their calls, in a thread that sleeps. One thread may call.

    step_seconds: what a step takes. Other programs take a share of that: see :data:`SHARES`.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._calls = deque[tuple[threading.Event, float, float]]()
        self._called = threading.Condition()
        self._free_at = 0.0  # when the last program ended
        self.idle_seconds = self.busy_seconds = 0.0
        self.steps = 0
        threading.Thread(target=self._run, daemon=True).start()

    def call(self, share: float) -> threading.Event:
        """Have a program run that takes a share of a step. The event is set once it has."""
        done = threading.Event()
        with self._called:
            self._calls.append((done, share * self._step_seconds, time.perf_counter()))
            self.steps += share == 1
            self._called.notify()
        return done

    def _run(self) -> None:
        while True:
            with self._called:
                self._called.wait_for(lambda: self._calls)
                done, seconds, called_at = self._calls.popleft()
            # By the times of calls: this thread may be woken late, and a device is not.
            if self._free_at:
                self.idle_seconds += max(0.0, called_at - self._free_at)
            self._free_at = max(self._free_at, called_at) + seconds
            time.sleep(max(0.0, self._free_at - time.perf_counter()))
            self.busy_seconds += seconds
            done.set()


class Later(OnDevice):
    """Zeros that are there once a program has run."""

    def __init__(self, zeros: Array, done: threading.Event) -> None:
        super().__init__(np.asarray(zeros))
        self.on_device = zeros
        self._done = done

    def block_until_ready(self) -> OnDevice:
        """Wait for the program."""
        self._done.wait()
        return self


class ProgramsOfOwnDevice(ExecutableTable[StackedDecoder]):
    """Programs with the arguments of the real ones. What they would write into is returned as it is.

    device: None for programs that take no time.
    """

    def __init__(self, *given: Any, device: OwnDevice | None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._device = device

    def _compile(self, key: Key) -> jax.stages.Compiled:
        function, arguments, donated = key.source(self.decoder)
        outputs = jax.eval_shape(function, *arguments)
        zeros = [jnp.zeros(output.shape, output.dtype) for output in outputs[: len(outputs) - len(donated)]]
        share = SHARES.get(type(key), 1.0)

        def nothing(*given: Array) -> tuple[Array, ...]:
            return jnp.zeros(()), *(given[number] for number in donated)

        # Without the option, arguments that nothing depends on would not be brought to the device.
        executable = jax.jit(nothing, donate_argnums=donated, keep_unused=True).lower(*arguments).compile()

        def called(*given: Any) -> tuple[Any, ...]:
            _, *kept = executable(*(one.on_device if isinstance(one, Later) else one for one in given))
            if self._device is None:
                return *zeros, *kept
            done = self._device.call(share)
            return *(Later(one, done) for one in zeros), *kept

        return called  # type: ignore[return-value]
