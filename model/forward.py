"""The interface between the engine and the device: a decoder and a pool of prefix blocks, whichever way it computes.

The engine, the prefix cache and the runner of heads know nothing else of the device. An implementation decides which
extensions share a step (:meth:`Forward.fill`), and lays out and computes a step (:meth:`Forward.run`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from model.adapted_decoders import AdaptedDecoders
from model.packed_sequence import PackedSequence
from model.programs.heads import Heads
from model.rows import Row
from model.states import Computed
from scoring.layout import TokenIds
from scoring.planning.estimates import Shapes

Numbers = npt.NDArray[np.int64]
NO_BLOCKS: TokenIds = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """Tokens that are computed behind the first ``start`` tokens of a prefix: an item, or a piece of a prefix."""

    tokens: TokenIds  # int32 [length], at positions from ``start`` on
    start: int
    row: Row | None = None  # the row that they score; None for a piece of a prefix
    table: TokenIds = field(default_factory=lambda: NO_BLOCKS)
    """int32: the blocks of the prefix in order, and padding behind them."""
    stored: TokenIds = field(default_factory=lambda: NO_BLOCKS)
    """int32: the blocks that its keys and values are written to, in order; none for items."""
    source: int | None = None
    """A block that has what comes before its first token in the first of the blocks that it is stored in; None: nothing
    does. The tokens before the block's beginning are in the blocks of the table."""
    read: int = 1
    """How many of its last tokens are read, that is, their final states are wanted. One that is read at several tokens
    is computed by other programs behind the last layer's keys and values, in steps of its own kind."""
    tails: tuple[int, ...] = ()
    """The lengths of its tails. They are its last tokens, one tail after another. Each tail continues what is before
    the first one, and does not see the others. Only an extension that is read at several tokens has tails."""
    adapter: str | None = None
    """The key of the adapter with which it is computed, as all extensions of a step are; None: without one."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """The R rows in which the tokens of extensions attend to their own extension.

    An extension without its tails is a row. So is each tail together with the tokens that it continues. Their keys and
    values are computed once, in the extension's first row, and a tail's row shares them. So what a tail gets depends on
    its own row alone. All arrays are int64 [R], and ``begins`` and ``own_begins`` are places in a step.
    """

    begins: Numbers  # where the shared tokens begin
    shared: Numbers  # how many tokens the row shares
    own_begins: Numbers  # where the row's own tokens begin
    own: Numbers  # how many of its tokens no other row has; the rows' own tokens are all tokens of the step, in order

    @classmethod
    def of(cls, extensions: Sequence[Extension], begins: Numbers) -> AttentionRows:
        """Return the rows of extensions that begin at some places of a step."""
        lengths = np.array([len(extension.tokens) for extension in extensions], np.int64)
        if not any(extension.tails for extension in extensions):  # Nearly always, and then this is a faster way.
            return cls(begins, np.zeros_like(lengths), begins, lengths)
        stems = lengths - np.array([sum(extension.tails) for extension in extensions], np.int64)
        of_extension = np.repeat(np.arange(len(extensions)), [1 + len(extension.tails) for extension in extensions])
        is_tail = np.diff(of_extension, prepend=-1) == 0
        own = np.array([part for n, one in enumerate(extensions) for part in (stems[n], *one.tails)], np.int64)
        inside = np.cumsum(own) - own - (np.cumsum(lengths) - lengths)[of_extension]  # places in the extension
        return cls(begins[of_extension], stems[of_extension] * is_tail, begins[of_extension] + inside, own)

    @property
    def lengths(self) -> Numbers:
        """The tokens of each row, [R]."""
        return self.shared + self.own

    def offsets(self) -> Numbers:
        """Return the place of each own token in its row, one row after another."""
        firsts = np.cumsum(self.own) - self.own - self.shared
        offsets: Numbers = np.arange(int(self.own.sum())) - np.repeat(firsts, self.own)
        return offsets

    def places(self, offset: Numbers) -> Numbers:
        """Return where in the step the tokens of rows are; offset: of each token in its row, [R, any]."""
        begins, shared, own_begins = (part[:, None] for part in (self.begins, self.shared, self.own_begins))
        return np.where(offset < shared, begins + offset, own_begins + offset - shared)

    def windows(self, count: int) -> Numbers:
        """Return where in the step each own token is, behind the ones before it in its row: [tokens, count].

        A number below zero says how far before the row's first token such a token is.
        """
        of_row = np.repeat(np.arange(len(self.own)), self.own)
        offsets = self.offsets()[:, None] + np.arange(1 - count, 1)
        of_tokens = AttentionRows(*(part[of_row] for part in (self.begins, self.shared, self.own_begins, self.own)))
        return np.where(offsets < 0, offsets, of_tokens.places(offsets))


class Forward(Protocol):
    """A decoder and its pool of prefix blocks on a device. One thread at a time may call; any thread may compile.

    Calls are only dispatched. None of them waits for the device, except for programs that are not compiled yet.
    """

    @property
    def decoders(self) -> AdaptedDecoders[Any]:
        """The decoder, and those of adapters, which extensions name by their keys."""

    @property
    def heads(self) -> Heads:
        """The heads of the decoder."""

    @property
    def shapes(self) -> Shapes:
        """The sizes to which steps, packed sequences and heads are padded."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the pool. A step holds one block of tokens, or a multiple."""

    @property
    def grain(self) -> int:
        """Tokens at whose multiples a sequence may be cut into pieces. Its bits are the same wherever it is cut.

        A block has so many, or a multiple. A piece that begins within a block has a ``source``.
        """

    @property
    def prefixes(self) -> int:
        """How many prefixes the extensions of one step may continue."""

    @property
    def has_states(self) -> bool:
        """Whether recurrent layers keep a state behind each block. Then all extensions of a prefix in a step must begin
        behind the same block, or behind nothing, at a place up to which the tokens of blocks were computed: no block is
        cut."""

    def core(self) -> tuple[Hashable, ...]:
        """Return the keys of the programs that are compiled before serving: enough to score any usual request."""

    def rest(self, *, packed: bool, dense: bool) -> tuple[Hashable, ...]:
        """Return the keys of the other programs, which are compiled beside the first work.

        packed, dense: whether packed sequences may be computed without a mask and with one.
        """

    def compile(self, key: Hashable) -> None:
        """Compile a program, and check it against a known answer.

        Raises :class:`model.checks.known_answer.KnownAnswerError`, as does any later call that compiles a program.
        """

    def clean(self) -> None:
        """Write zeros wherever the pool may have something that is no number, which nothing in use has.

        A key that is not seen has no weight, but no weight times NaN is NaN.
        """

    def fill(self, extensions: Sequence[Extension]) -> Iterator[tuple[Extension, ...]]:
        """Fill steps with extensions. None may be longer than a step, and all of them are in exactly one step.

        Those that are read at several tokens share no step with others.
        """

    def run(self, extensions: Sequence[Extension]) -> Computed:
        """Compute the extensions of a step, behind what earlier calls have stored in the pool.

        An extension with ``stored`` blocks begins at the beginning of the first of them, unless it has a ``source``.
        One that is stored and read at several tokens is alone.
        """

    def packed(self, sequence: PackedSequence, *, dense: bool, adapter: str | None = None) -> Computed:
        """Compute a packed sequence at its logit positions; dense: with an explicit mask; adapter: its key."""
