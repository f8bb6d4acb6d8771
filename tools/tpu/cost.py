"""The compiler's own estimate of a program, in cycles: a yardstick for comparing programs, and no measurement.

The TPU compiler writes ``estimated_cycles`` beside most instructions of an optimized module. They are summed here: the
body of a loop counts as often as it turns, a branch as often as it is taken. Kernels carry no estimate, so theirs is
handed in (:mod:`tools.tpu.kernels`). Neither do gathers of rows and updates in place: they count by the bytes
that they read and write, at the bandwidth of the chip's large memory even where they stay in a faster one. Stalls and
launches are left out, and the estimate of plain memory traffic is pessimistic (``docs/accelerators.md``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tools.tpu.hlo import Instruction, Module

Frequencies = Mapping[str, float]
"""How often parts of a program run that depend on its arguments, by name.

The name of a loop with a computed end is its path in the traced function, without the function's own name
(``while``, ``while/body/while``); the number is that of its turns. A branch of a conditional has the name of the
conditional and ``/branch0``, ``/branch1`` and so on; the number is the share of runs in which it is taken. For the
parts of kernels, see :mod:`tools.tpu.bundles`.
"""


_ROUNDS = {"all-reduce": 2, "all-gather": 1}
"""The exchanges between chips, and how often an array goes around the ring."""


class UnknownFrequencyError(Exception):
    """A loop with a computed end whose turns nobody has given."""


@dataclass(frozen=True, slots=True)
class Part:
    """The cycles of one instruction in one run of the program."""

    instruction: Instruction
    cycles: float  # of one run of the instruction
    times: float  # how often it runs

    @property
    def total(self) -> float:
        """Its share of the program's cycles."""
        return self.cycles * self.times


def parts(
    module: Module,
    frequencies: Frequencies,
    kernel_cycles: Callable[[Instruction], float] = lambda kernel: 0.0,
    cycle_bytes: float = math.inf,
    cycle_ring_bytes: float = math.inf,
) -> Iterator[Part]:
    """Yield what every instruction adds to the cycles of a program.

    kernel_cycles: returns the cycles of one run of a Pallas kernel; cycle_bytes,
    cycle_ring_bytes: see :class:`tools.tpu.targets.Target`. Raises UnknownFrequencyError.
    """
    yield from _Walk(module, frequencies, kernel_cycles, cycle_bytes, cycle_ring_bytes).computation(module.entry, 1.0)


def cycles(
    module: Module,
    frequencies: Frequencies,
    kernel_cycles: Callable[[Instruction], float] = lambda kernel: 0.0,
    cycle_bytes: float = math.inf,
    cycle_ring_bytes: float = math.inf,
) -> float:
    """Return the estimated cycles of one run of a program: the sum of :func:`parts`."""
    return sum(part.total for part in parts(module, frequencies, kernel_cycles, cycle_bytes, cycle_ring_bytes))


def sent_bytes(instruction: Instruction) -> float | None:
    """Return the bytes that each chip sends in an exchange between chips that form a ring; None for anything else.

    In an all-reduce, every part of an array goes around once to be added and once to be known; in an all-gather, once.
    """
    kind = instruction.opcode.removesuffix("-start")
    if kind not in _ROUNDS:
        return None
    found = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", instruction.attributes)
    assert found is not None
    chips = len(found[1].split(",")) if found[1] else int(found[2])
    return _ROUNDS[kind] * (chips - 1) / chips * sum(array.bytes for array in instruction.results)


def path(instruction: Instruction) -> str:
    """Return the path of an operation in the traced function, without the names of the functions on the way."""
    steps = instruction.op_name.split("/")
    return "/".join(step for step in steps if step != "closed_call" and not step.startswith(("jit(", "pjit(")))


@dataclass(frozen=True, slots=True)
class _Walk:
    module: Module
    frequencies: Frequencies
    kernel_cycles: Callable[[Instruction], float]
    cycle_bytes: float
    cycle_ring_bytes: float

    def computation(self, name: str, times: float) -> Iterator[Part]:
        for instruction in self.module.computations[name]:
            yield from self._instruction(name, instruction, times)

    def _instruction(self, computation: str, instruction: Instruction, times: float) -> Iterator[Part]:
        match instruction.opcode:
            case "while":
                body = instruction.called("body")
                assert body is not None
                yield from self.computation(body, times * self._turns(computation, instruction))
            case "conditional":
                yield from self._branches(instruction, times)
            case "custom-call" if instruction.kernel is not None:
                yield Part(instruction, self.kernel_cycles(instruction), times)
            case _ if (sent := sent_bytes(instruction)) is not None:
                yield Part(instruction, sent / self.cycle_ring_bytes, times)
            case _ if instruction.cycles is not None:
                yield Part(instruction, instruction.cycles, times)
            case _ if (moved := self._moved(computation, instruction)) is not None:
                yield Part(instruction, 2 * moved / self.cycle_bytes, times)  # read, and written
            case "call" | "fusion" | "async-start":
                inner = instruction.called("to_apply") or instruction.called("calls")
                if inner is not None:
                    yield from self.computation(inner, times)

    def _moved(self, computation: str, instruction: Instruction) -> float | None:
        """Return the bytes that an instruction moves from place to place; None if it does something else."""
        opcode, inner = instruction.opcode, instruction.called("calls")
        if opcode == "fusion" and inner is not None:
            gathers = any(inside.opcode == "gather" for inside in self.module.computations[inner])
            opcode = "gather" if gathers else opcode
        if opcode == "gather":
            return sum(array.bytes for array in instruction.results)
        if opcode == "dynamic-update-slice":
            return sum(array.bytes for array in self.module.named(computation)[instruction.operands[1]].results)
        return None

    def _branches(self, instruction: Instruction, times: float) -> Iterator[Part]:
        """Without given shares, the branch with the most cycles counts as always taken."""
        name = path(instruction)
        shares = [self.frequencies.get(f"{name}/branch{n}") for n in range(len(instruction.branches))]
        found = [list(self.computation(branch, times)) for branch in instruction.branches]
        if all(share is None for share in shares):
            yield from max(found, key=lambda branch: sum(part.total for part in branch))
            return
        for share, branch in zip(shares, found, strict=True):
            yield from (Part(part.instruction, part.cycles, part.times * (share or 0.0)) for part in branch)

    def _turns(self, computation: str, loop: Instruction) -> float:
        """Return how often a loop turns: a constant of the compiled program, or else one of the given numbers."""
        known = loop.config.get("known_trip_count")
        if isinstance(known, dict):
            return float(known["n"])
        constant = self._limit(computation, loop)
        if constant is not None:
            return constant
        name = path(loop)
        if name not in self.frequencies:
            raise UnknownFrequencyError(f"the loop {name!r} has a computed end, and its turns are not known")
        return self.frequencies[name]

    def _limit(self, computation: str, loop: Instruction) -> float | None:
        """Return the constant that the counter of a loop is compared with; None if its end is computed.

        The counters of jax's own loops begin at 0 and grow by 1.
        """
        condition = loop.called("condition")
        assert condition is not None
        named = self.module.named(condition)
        compare = self.module.root(condition)
        if compare.opcode == "fusion" and (inner := compare.called("calls")) is not None:
            arguments = [named[operand] for operand in compare.operands]
            named = self.module.named(inner)
            compare = self.module.root(inner)
            for instruction in list(named.values()):
                if instruction.opcode == "parameter":
                    named[instruction.name] = arguments[int(instruction.operands[0])]
        if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
            return None
        limit = named[compare.operands[1]]
        if limit.opcode == "get-tuple-element":
            limit = self._carried(computation, loop, limit) or limit
        if limit.opcode != "constant" or not re.fullmatch(r"-?\d+", limit.operands[0]):
            return None
        return float(limit.operands[0])

    def _carried(self, computation: str, loop: Instruction, element: Instruction) -> Instruction | None:
        """Return the instruction outside of a loop that an element of its state comes from, if no turn changes it."""
        number = _index(element)
        body = loop.called("body")
        assert body is not None
        end = self.module.root(body)
        if end.opcode != "tuple":
            return None
        kept = self.module.named(body)[end.operands[number]]
        if kept.opcode != "get-tuple-element" or _index(kept) != number:
            return None
        outside = self.module.named(computation)
        start = outside[loop.operands[0]]
        return outside[start.operands[number]] if start.opcode == "tuple" else None


def _index(element: Instruction) -> int:
    found = re.search(r"\bindex=(\d+)", element.attributes)
    assert found is not None
    return int(found.group(1))
