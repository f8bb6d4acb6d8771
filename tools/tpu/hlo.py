"""The text of an optimized HLO module, as the TPU compiler writes it, taken apart into instructions.

Only what estimates need is read: which computation calls which, the cycles that the compiler estimated for an
instruction, and shapes. The text is that of ``compiled.as_text()``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s+\(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\](?:\{(?:[^{}]*?S\((\d+)\))?[^{}]*\})?")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COMMENT = re.compile(r"/\*.*?\*/")
_BRACKETS = {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The element type and the dimensions of an array."""

    dtype: str  # by HLO's name, such as ``bf16``
    dimensions: tuple[int, ...]
    memory: int = 0  # the memory space: 0 is the chip's large one, others are smaller and faster

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> float:
        """The bytes of all elements, without the padding of a tiled layout."""
        bits = re.search(r"\d+", self.dtype)  # of ``pred`` a byte
        return self.size * (int(bits.group()) if bits else 8) / 8


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    is_root: bool
    type_text: str  # of the result
    opcode: str
    operands: tuple[str, ...]  # names of instructions; for a constant, its text
    attributes: str  # all that stands behind the operands

    @cached_property
    def results(self) -> tuple[ArrayType, ...]:
        """The arrays of the result: one, or those of a tuple."""
        return tuple(
            ArrayType(dtype, tuple(int(size) for size in sizes.split(",") if size), int(memory or 0))
            for dtype, sizes, memory in _ARRAY.findall(_COMMENT.sub("", self.type_text))
        )

    @cached_property
    def cycles(self) -> int | None:
        """The cycles that the compiler estimated for one run of the instruction; None if it gave no estimate.

        Where the text names several, they are of alternatives, and the largest counts.
        """
        found = _CYCLES.findall(self.attributes)
        return max(map(int, found)) if found else None

    @property
    def config(self) -> dict[str, Any]:
        """The ``backend_config``; empty if there is none."""
        _, found, text = self.attributes.partition("backend_config=")
        if not found or not text.startswith("{"):
            return {}
        config: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        return config

    @property
    def op_name(self) -> str:
        """The path of the operation in the traced function, such as ``jit(step)/while/body/add``; may be empty."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""

    def called(self, attribute: str) -> str | None:
        """Return the computation that an attribute names, such as ``body``."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found.group(1) if found else None

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional, in the order of the branch index; that of False before that of True."""
        found = re.search(r"\bbranch_computations=\{([^}]*)\}", self.attributes)
        if found:
            return tuple(name.strip().lstrip("%") for name in found.group(1).split(","))
        both = self.called("false_computation"), self.called("true_computation")
        return tuple(name for name in both if name is not None)

    @property
    def target(self) -> str:
        """What a custom call calls, such as ``tpu_custom_call``; empty for other instructions."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found.group(1) if found else ""

    @property
    def kernel(self) -> str | None:
        """The name of the Pallas kernel that the instruction runs; None if it runs none."""
        if self.target != "tpu_custom_call":
            return None
        path = self.op_name.split("/")
        return path[-2] if len(path) > 1 and path[-1] == "pallas_call" else self.name


@dataclass(frozen=True)
class Module:
    """The computations of a module, by name."""

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read the text of a module. Raises ValueError if it has no entry computation."""
        computations: dict[str, tuple[Instruction, ...]] = {}
        entry, name, lines = None, None, list[str]()
        for line in text.splitlines():
            if name is None:
                if (found := _COMPUTATION.match(line)) and not line[0].isspace():
                    name, lines = found.group(2), []
                    entry = name if found.group(1) else entry
            elif line.rstrip() == "}" or line.startswith("}, execution_thread="):  # of another core of the chip
                computations[name] = tuple(map(_instruction, lines))
                name = None
            elif _INSTRUCTION.match(line):
                lines.append(line)
            elif lines:  # metadata of kernels contain line breaks
                lines[-1] += line
        if entry is None:
            raise ValueError("this is not the text of an HLO module: it has no ENTRY computation")
        return cls(computations, entry)

    def named(self, computation: str) -> dict[str, Instruction]:
        """Return the instructions of a computation by name."""
        return {instruction.name: instruction for instruction in self.computations[computation]}

    def root(self, computation: str) -> Instruction:
        """Return the instruction whose result is that of the computation."""
        return next(instruction for instruction in self.computations[computation] if instruction.is_root)

    def executed(self) -> Iterator[tuple[str, Instruction]]:
        """Yield every instruction that runs by itself, with its computation. Those inside of fusions do not."""
        waiting, seen = [self.entry], {self.entry}
        while waiting:
            computation = waiting.pop()
            for instruction in self.computations[computation]:
                yield computation, instruction
                inner = _executed_computations(instruction)
                waiting += [name for name in inner if name not in seen]
                seen |= set(inner)


def _executed_computations(instruction: Instruction) -> tuple[str, ...]:
    match instruction.opcode:
        case "while":
            names = (instruction.called("body"), instruction.called("condition"))
        case "conditional":
            return instruction.branches
        case "call" | "async-start":
            names = (instruction.called("to_apply"), instruction.called("calls"))
        case _:
            return ()
    return tuple(name for name in names if name is not None)


def _instruction(line: str) -> Instruction:
    head = _INSTRUCTION.match(line)
    assert head is not None
    rest = line[head.end() :]
    type_end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, type_end)
    if opcode is None:
        raise ValueError(f"not an HLO instruction: {line.strip()[:200]}")
    end = _closing(rest, opcode.end() - 1)
    inside = _COMMENT.sub("", rest[opcode.end() : end - 1])
    operands = tuple(part.strip().split(" ")[-1].lstrip("%") for part in _split(inside) if part.strip())
    return Instruction(
        head.group(2), bool(head.group(1)), rest[:type_end], opcode.group(1), operands, rest[end:].lstrip(", ")
    )


def _closing(text: str, start: int = 0) -> int:
    """Return the place behind the bracket that closes the one at ``start``."""
    depth = 0
    for place in range(start, len(text)):
        depth += _BRACKETS.get(text[place], 0)
        if not depth:
            return place + 1
    raise ValueError(f"a bracket is not closed: {text[start : start + 200]}")


def _split(text: str) -> Iterator[str]:
    """Split at the commas that stand in no brackets."""
    depth, begin = 0, 0
    for place, character in enumerate(text):
        depth += _BRACKETS.get(character, 0)
        if character == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]
