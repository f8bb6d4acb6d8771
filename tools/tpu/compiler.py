"""Compiling a function for a TPU ahead of time, and reading the sizes of the result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from tools.tpu.hlo import ArrayType, Instruction, Module
from tools.tpu.targets import Target, TargetError

_COPYING = frozenset({"copy", "copy-start", "transpose", "convert", "reshape"})
"""Operations that write an array of the size that they read. As an instruction of its own, a reshape copies, too."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program."""

    module: Module
    seconds: float  # that lowering and compiling took
    argument_bytes: int
    temporary_bytes: int
    output_bytes: int  # of outputs that do not take the place of a donated argument
    custom_calls: Mapping[str, int]  # Pallas kernels and other custom calls by name, as they stand in the text

    def copies(self, arrays: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Return the names of those arrays of which the program writes a copy, and the instructions that do so.

        arrays: dimensions by name. Any order of the same dimensions counts, as a transposed copy is one, too.
        """
        wanted: dict[tuple[int, ...], str] = {}
        for name, dimensions in arrays.items():
            wanted.setdefault(_sorted(dimensions), name)
        found = []
        for _, instruction in self.module.executed():
            if self._copies(instruction):
                written = instruction.results[:1] if instruction.opcode == "copy-start" else instruction.results
                # What goes to a faster memory is loaded there to be used, and not copied.
                same = [wanted.get(_sorted(array.dimensions)) for array in written if not array.memory]
                found += [f"{name}: {instruction.name}" for name in dict.fromkeys(same) if name is not None]
        return tuple(found)

    def _copies(self, instruction: Instruction) -> bool:
        if instruction.opcode != "fusion":
            return instruction.opcode in _COPYING
        called = instruction.called("calls")
        return called is not None and self.module.root(called).opcode in _COPYING


class Compiler:
    """Compiles for a target, which must be prepared: :func:`targets.prepare_environment`.

    A program is compiled for one chip, unless the shapes of its arguments say on which chips their parts are. What is
    then said of it is about one of these chips, all of which run the same program.
    """

    def __init__(self, target: Target) -> None:
        """Load libtpu. Raises TargetError if it can't be used."""
        self.target = target
        jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]
        try:
            topology = topologies.get_topology_desc(
                platform="tpu", topology_name=target.topology, chips_per_host_bounds=list(target.hosts)
            )
        except Exception as error:  # what it raises differs from version to version
            raise TargetError(f"libtpu can't compile for {target.name}: {str(error).splitlines()[0]}") from error
        self.mesh = Mesh(np.array(topology.devices[:1]), ("chip",))
        self.devices: list[jax.Device] = list(topology.devices)  # of the topology: nothing can run on them

    def compile(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        donated: tuple[int, ...] = (),
        options: Mapping[str, str | bool] | None = None,
    ) -> Compiled:
        """Compile a function; arguments: trees of shapes; donated: numbers of arguments; options: of the compiler.

        Raises whatever jax raises for a program that does not compile.
        """
        divided = _mesh(arguments)
        mesh = divided or self.mesh
        whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        shapes = arguments
        if divided is None:
            shapes = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype, sharding=whole), arguments)
        started = time.perf_counter()
        # Else Pallas would ask the default device, a CPU, what kind of TPU it is.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jax.jit(function, donate_argnums=donated).lower(*shapes)
        executable = lowered.compile(compiler_options=dict(options or {}))
        seconds = time.perf_counter() - started
        module = Module.parse(executable.as_text() or "")
        memory = executable.memory_analysis()
        assert memory is not None
        calls = Counter(
            instruction.kernel or instruction.target
            for _, instruction in module.executed()
            if instruction.opcode == "custom-call"
        )
        return Compiled(
            module,
            seconds,
            memory.argument_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.output_size_in_bytes - memory.alias_size_in_bytes,
            dict(calls),
        )

    def calibration(self, size: int = 4096) -> Compiled:
        """Compile a bf16 product of two square matrices, by whose estimate the others can be judged."""
        matrix = shape((size, size), jnp.bfloat16)
        return self.compile(lambda left, right: jnp.matmul(left, right), (matrix, matrix))


def _mesh(arguments: Sequence[Any]) -> Mesh | None:
    """Return the mesh over which arguments are divided; None if they do not say."""
    for leaf in jax.tree.leaves(arguments):
        sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def shape(dimensions: tuple[int, ...], dtype: Any, sharding: Sharding | None = None) -> jax.ShapeDtypeStruct:
    """Return the shape of an array that is not there."""
    return jax.ShapeDtypeStruct(dimensions, dtype, sharding=sharding)  # type: ignore[no-untyped-call]


DTYPES: dict[str, Any] = {
    "pred": jnp.bool_,
    "s4": jnp.int4,
    "s8": jnp.int8,
    "s16": jnp.int16,
    "s32": jnp.int32,
    "u8": jnp.uint8,
    "u16": jnp.uint16,
    "u32": jnp.uint32,
    "bf16": jnp.bfloat16,
    "f16": jnp.float16,
    "f32": jnp.float32,
    "f8e4m3fn": jnp.float8_e4m3fn,
    "f8e5m2": jnp.float8_e5m2,
}
"""Element types by HLO's names."""


def shape_of(array: ArrayType) -> jax.ShapeDtypeStruct:
    """Return an array of an HLO module as a shape."""
    return shape(array.dimensions, DTYPES[array.dtype])


def _sorted(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(size for size in dimensions if size > 1))
