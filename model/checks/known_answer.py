"""Known-answer tests of the compiled programs: compilers of some versions and devices have been silently wrong.

Before a program may be used, it runs once on random numbers and the served weights, and its outputs are compared with
NumPy's (:class:`ModelChecks`). Before a worker serves, the programs of all layers together are compared with NumPy on
known prompts (:mod:`model.checks.known_prompts`). Programs are pure functions, so those that are compiled during the
work are checked in the thread that compiles them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from typing import Generic, TypeVar

import jax
import numpy as np
import numpy.typing as npt
import structlog
from jax.typing import ArrayLike

from model.checks.expected import Answering, ExpectedOutput
from model.checks.known_prompts import KnownPrompts, expected_states, known_alone, prompt_states
from model.checks.numpy_decoder import Floats, ServedDecoder
from model.platforms import Platform

PROGRAM_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest error of a row of a program's output, relative to its norm. docs/log.md has the errors of right programs."""
MODEL_TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""The error of a final state behind all layers that is always allowed, relative to its norm."""

SHAKEN = 2.0
"""How many times the error of a final state may else be that of NumPy's own, if the last places of its numbers are
changed behind each layer. Rounding errors add up over the layers, by how much depends on the weights; and in a mixture
of experts, a token that could as well pass another expert may pass it here.
"""
MOST = 0.1
"""The largest error of a final state that is allowed at all, unless the median row counts."""

EVERYWHERE = "reading all tokens"
"""How messages name rows that are read at several tokens."""

log = structlog.stdlib.get_logger("engine")

D = TypeVar("D", bound=ServedDecoder)


class KnownAnswerError(Exception):
    """A program, or the whole model, computes something else than NumPy, or other bits for copies of the same item."""


class ModelChecks(Generic[D]):
    """Checks the programs of one model. Safe to call from several threads.

    prompts: returns what is scored for :meth:`check_model`, by the tokens of the longest sequence that is served;
    None for the known prompt alone.
    """

    def __init__(self, decoder: D, platform: Platform, prompts: Callable[[int], KnownPrompts] | None = None) -> None:
        self._decoder = decoder
        self._dtype = decoder.dtype
        self._where = f"jax {jax.__version__}, jaxlib {version('jaxlib')}, {platform}"
        self.prompts = prompts or (lambda _: known_alone(decoder.config.vocabulary))

    def check(self, key: Answering[D], executable: jax.stages.Compiled) -> None:
        """Run a program on random numbers of a fixed seed, if it can be. Raises :class:`KnownAnswerError`."""
        case = key.known_answer(self._decoder, np.random.default_rng(0))
        if case is None:
            return
        arguments, expected = case
        outputs = executable(*arguments)
        if len(outputs) != len(expected):
            raise KnownAnswerError(f"{key} has {len(outputs)} outputs instead of {len(expected)} ({self._where})")
        for number, (one, output) in enumerate(zip(expected, outputs, strict=True)):
            self._require(f"output {number} of {key}", one, output)

    def check_model(
        self, known: KnownPrompts, found: Mapping[str, Floats], read: Sequence[Floats] = (), *, same_bits: bool
    ) -> None:
        """Compare final states with NumPy's, and those of copies with one another.

        found: by algorithm, the states of all rows of all companies in order, float32 [N, width]. read: the states of
        all own tokens of each of these rows, or of the last, [tokens, width] each; empty where that was not tried.
        same_bits: whether copies must have the same bits; if not, a difference is only logged. Raises
        :class:`KnownAnswerError`.
        """
        self.compare(known, found, read)
        copies = known.copies()
        for algorithm, of_all in found.items():
            bits = of_all[copies.rows].view(np.int32)
            self._judge(algorithm, (bits != bits[copies.first]).any(axis=1), same_bits=same_bits)
        if read:
            of_copies = [read[row].view(np.int32) for row in copies.rows.tolist()]
            other = [(one != of_copies[first]).any() for one, first in zip(of_copies, copies.first, strict=True)]
            self._judge(EVERYWHERE, np.array(other), same_bits=same_bits)

    def _judge(self, algorithm: str, other_bits: npt.NDArray[np.bool_], *, same_bits: bool) -> None:
        """Raise KnownAnswerError, or log, if copies have other bits than the first one of their kind."""
        differing = int(other_bits.sum())
        if differing and same_bits:
            raise KnownAnswerError(
                f"{differing} of {len(other_bits)} copies of known items scored by {algorithm} do not have the same "
                f"bits ({self._where}): on this device and with these versions, a score depends on its place in a step "
                "or on other items. With SCORELINE_BATCH_INVARIANT=false, such scores are served"
            )
        if differing:
            log.warning("bits of scores depend on their company", algorithm=algorithm, copies=differing)

    def compare(self, known: KnownPrompts, found: Mapping[str, Floats], read: Sequence[Floats] = ()) -> None:
        """Do the same without comparing copies with one another."""
        copies = known.copies()
        of_rows = cache(partial(prompt_states, self._decoder, known.prompts))

        def ends(*, shaken: bool = False) -> Floats:
            return np.stack([of_row[-1] for of_row in of_rows(shaken=shaken)])[copies.numbers]

        self._compare(ends, {algorithm: of_all[copies.rows] for algorithm, of_all in found.items()})
        if read:
            of_copies = [read[row] for row in copies.rows.tolist()]

            def everywhere(*, shaken: bool = False) -> Floats:
                states, numbers = of_rows(shaken=shaken), copies.numbers.tolist()
                return np.concatenate([states[n][-len(one) :] for n, one in zip(numbers, of_copies, strict=True)])

            self._compare(everywhere, {EVERYWHERE: np.concatenate(of_copies)})

    def _compare(self, states: Callable[..., Floats], found: Mapping[str, Floats]) -> None:
        expected = expected_states(self._decoder, states)
        for algorithm, of_all in found.items():
            self._require(f"a known prompt scored by {algorithm}", expected, of_all)

    def _tolerance(self, expected: ExpectedOutput) -> float:
        """Return the largest error of an output that is allowed."""
        tolerance = PROGRAM_TOLERANCE if expected.states_of is None else MODEL_TOLERANCE
        return 0.0 if expected.exact else tolerance[self._dtype.name]

    def _require(self, what: str, expected: ExpectedOutput, output: ArrayLike) -> None:
        error, tolerance = expected.error_of(output), self._tolerance(expected)
        if tolerance < error < np.inf and expected.shaken is not None:
            moved = SHAKEN * expected.error_of(expected.shaken())
            tolerance = max(tolerance, moved if expected.of_median else min(MOST, moved))
            log.info("rounding errors add up", of=what, error=error, allowed=tolerance)
        if error > tolerance:
            raise KnownAnswerError(
                f"{what} differs from NumPy's by {error:.2g} of its size, where {tolerance:g} is allowed "
                f"({self._where}): this device and these versions compute something wrong"
            )
