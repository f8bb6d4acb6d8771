"""A sequence in use, whose keys and values are in blocks of the pool: found there, or computed a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.forward import Extension, Forward
from model.prefixes.blocks import NO_KEYS, Blocks, Segment, SegmentKeys
from model.states import Computed, States, nothing_computed, without_pause
from scoring.layout import TokenIds

NOTHING_COMPUTED: Mapping[bytes, Segment] = {}


@dataclass(frozen=True, slots=True, eq=False)
class PoolContext:
    """What all sequences need that are computed into the blocks of one pool."""

    forward: Forward
    blocks: Blocks
    take_from_others: Callable[[Prefix], None]
    """Takes the blocks of all other sequences in use, which are of work that this work preempts, or wait for it."""


class Prefix:
    """A sequence in use. Its blocks are protected, except from work that preempts this work or needs the whole pool.

    Then it computes them again, which changes no bit.
    """

    def __init__(
        self,
        pool: PoolContext,
        tokens: TokenIds,
        keys: Sequence[SegmentKeys] = (),
        *,
        base: Prefix | None = None,
        common: int = 0,
        read: int = 1,
        adapter: str | None = None,
    ) -> None:
        """keys: of all segments, if they may be found and are kept afterwards. read: how many last tokens are read.

        adapter: see :class:`model.forward.Extension`.

        base: a sequence in use, with which it shares the whole steps of its first ``common`` tokens.
        """
        self.tokens = tokens
        self.adapter = adapter
        self.table: TokenIds = np.zeros(pool.blocks.shape.longest, np.int32)
        """Its blocks in order, int32 [longest], and padding behind them. It is always the same array."""
        self.hidden: States | None = None
        """Once it was obtained, the final hidden state of its last token, if only that token is read."""
        self.shared: int | None = None  # how many of its tokens others compute; None until that is known
        self.is_complete = False  # whether it was obtained, and still has its blocks
        self._pool = pool
        self._keys = keys
        self._base = base
        self._common = common // pool.forward.shapes.step_tokens * pool.forward.shapes.step_tokens
        self._read = read
        self._segments: list[Segment] = []  # that it holds; none before it begins, and after it has lost its blocks
        self._source: Segment | None = None
        """What it holds until its next step has copied the beginning of a block from there."""
        self._branching: Segment | None = None
        """Its own segment of no more than the tokens that it shares within a block, before these are computed."""
        self._done = 0  # tokens that are computed, or whose computation is dispatched
        self._last: tuple[Computed, int] | None = None  # its last step, and the number of the last token's state
        self._taken = 0  # tokens that are read whose states were taken
        self._untaken: list[tuple[range, Computed]] = []  # steps, and which of the tokens that are read are theirs

    @property
    def is_lost(self) -> bool:
        """Whether it has no blocks: none yet, or none any more."""
        return not self._segments

    @property
    def is_computed(self) -> bool:
        """Whether the steps of all of its tokens are dispatched, and it has its blocks."""
        return not self.is_lost and self._done == len(self.tokens)

    def obtain(self) -> Iterator[Computed]:
        """Find it, or compute what is missing. Yields each step.

        Once its blocks were taken, it computes the rest without a pause, so that it comes to an end even if it is
        preempted at every pause. Its blocks may be taken again while the last tokens are yielded.
        """
        if self.find():
            return
        again = 0  # tokens of the steps behind which there was no pause
        self.begin()
        while not self.is_computed:
            if not self.is_lost:
                yield self._step()
                continue
            self.begin()
            again += without_pause(self._rest())
        self.complete()
        if again:
            yield nothing_computed(again)

    def _rest(self) -> Iterator[Computed]:
        while not self.is_computed:
            yield self._step()

    def find(self) -> bool:
        """Take all of its segments if they are there. Returns whether it is complete now, or was before."""
        if self.is_complete or not self._keys:
            return self.is_complete
        found = self._segments_of(self._keys)
        if len(found) < len(self._keys) or found[-1].hidden is None:
            return False
        self._hold(found)
        self._count_shared(len(self.tokens))
        self.hidden, self._done, self.is_complete = found[-1].hidden, len(self.tokens), True
        return True

    def begin(self, computing: Mapping[bytes, Segment] = NOTHING_COMPUTED) -> None:
        """Take its blocks. computing: segments that others compute in the same steps as its own, or in steps before."""
        blocks, size = self._pool.blocks, self._pool.forward.block_tokens
        if self._base is not None:
            self._hold(self._base.beginning(self._common))
        else:
            # The last segment is its own, so that its last token is read.
            self._hold(self._segments_of(self._keys[:-1], computing))
        first, count = len(self._segments), -(-len(self.tokens) // size) - len(self._segments)
        keys = self._keys[first:] or [NO_KEYS] * count
        self._source, copied, branching = self._within(keys[0])
        if not blocks.make_room(count + (branching is not None)):
            # Sharing a part of a block is not worth the blocks of others.
            self._release_source()
            copied, branching = 0, None
            if not blocks.make_room(count):
                self._pool.take_from_others(self)
                blocks.make_room(count)
        self._segments += [blocks.take(of_segment) for of_segment in keys]
        self._branching = None if branching is None else blocks.take(branching)
        self._done = first * size + copied
        self._count_shared(self._done)
        self._write_table()

    def _within(self, keys: SegmentKeys) -> tuple[Segment | None, int, SegmentKeys | None]:
        """Return where the beginning of its next block can be copied from, held, and how many tokens that are.

        Recurrent layers have states at the ends of segments alone. So what is only found within a segment is computed
        once more, as a segment that ends there, from which all sequences go on that branch off at this place. Its keys
        come last.
        """
        blocks, branching = self._pool.blocks, None
        for grains in range(len(keys.inside), 0, -1):
            key = keys.inside[grains - 1]
            source = blocks.find(key)
            if source is None and (within := blocks.find_within(key)) is not None:
                if not self._pool.forward.has_states:
                    source = within
                elif branching is None:
                    branching = keys.beginning(grains)
            if source is not None:
                source.holders += 1
                return source, grains * self._pool.forward.grain, branching
        return None, 0, branching

    def beginning(self, tokens: int) -> list[Segment]:
        """Return the segments of so many of its first tokens, which are whole segments; none if it is not complete."""
        return self._segments[: tokens // self._pool.forward.block_tokens] if self.is_complete else []

    @property
    def own(self) -> dict[bytes, Segment]:
        """The segments that it computes, and others may share, by their keys."""
        first = self._done // self._pool.forward.block_tokens
        return {segment.keys.end: segment for segment in self._segments[first:] if self._keys}

    def pieces(self) -> list[Extension]:
        """Return all that is left to compute, a block at a time."""
        size, length = self._pool.forward.block_tokens, len(self.tokens)
        return [
            Extension(
                self.tokens[start : start + size],
                start,
                None,
                self.table,
                self.table[start // size :][:1],
                adapter=self.adapter,
            )
            for start in range(self._done, length, size)
        ]

    def note(self, step: Sequence[Extension], computed: Computed) -> None:
        """Take notice of a step that may hold the last one of the pieces."""
        for index, piece in enumerate(step):
            if piece.table is self.table and piece.start + len(piece.tokens) == len(self.tokens):
                self._last, self._done = (computed, index), len(self.tokens)

    def complete(self) -> None:
        """Keep the state of its last token. Have the sequence found from now on, if it is kept."""
        assert self._last is not None
        (computed, number), self._last = self._last, None
        self.hidden = computed.kept(number)
        self._segments[-1].hidden = self.hidden
        if self._keys:
            self._segments = self._pool.blocks.add(self._segments)
            self._write_table()
        self.is_complete = True

    def take(self) -> Iterator[tuple[int, States]]:
        """Yield the states of further tokens that are read, if several are, and the number of the first of them.

        No state is taken twice, although a sequence that begins again computes it twice.
        """
        for numbers, computed in self._untaken:
            if self._taken < numbers.stop:
                yield self._taken, computed.of(self._taken - numbers.start, len(numbers))
                self._taken = numbers.stop
        self._untaken.clear()

    def lose(self) -> None:
        """Give its blocks up. Who needs it next obtains it again."""
        self._release_source()
        if self._branching is not None:
            self._pool.blocks.release(self._branching)
        for segment in reversed(self._segments):
            self._pool.blocks.release(segment)
        self._segments, self._branching, self.is_complete = [], None, False

    def _segments_of(
        self, keys: Sequence[SegmentKeys], computing: Mapping[bytes, Segment] = NOTHING_COMPUTED
    ) -> list[Segment]:
        """Return the segments of its beginning that are there."""
        found = list[Segment]()
        for of_segment in keys:
            segment = self._pool.blocks.find(of_segment.end)
            if segment is None:
                segment = computing.get(of_segment.end)
                if segment is None or not segment.holders:  # nobody computes it any more
                    break
            found.append(segment)
        return found

    def _hold(self, segments: list[Segment]) -> None:
        assert self.is_lost
        for segment in segments:
            segment.holders += 1
        self._segments = segments
        self._write_table()

    def _count_shared(self, tokens: int) -> None:
        if self.shared is None:
            self.shared = tokens

    def _release_source(self) -> None:
        if self._source is not None:
            self._pool.blocks.release(self._source)
            self._source = None

    def _write_table(self) -> None:
        self.table[: len(self._segments)] = [segment.block for segment in self._segments]

    def _step(self) -> Computed:
        """Dispatch the next step."""
        forward = self._pool.forward
        size, length = forward.block_tokens, len(self.tokens)
        start, number = self._done, self._done // size
        stop = min(number * size + forward.shapes.step_tokens, length)
        branching = self._branching
        if branching is None:
            self.table[number] = self._segments[number].block
        else:
            stop = number * size + (len(branching.keys.inside) + 1) * forward.grain
            self.table[number] = branching.block
        first_read = length - self._read
        read = max(0, stop - max(start, first_read))
        blocks, source = self.table[number : -(-stop // size)], None if self._source is None else self._source.block
        piece = Extension(self.tokens[start:stop], start, None, self.table, blocks, source, read, adapter=self.adapter)
        self._done = stop
        computed = forward.run([piece])
        self._release_source()
        if branching is not None:
            (self._source,), self._branching = self._pool.blocks.add([branching]), None
        self._last = computed, 0
        if read and self._read > 1:
            self._untaken.append((range(stop - read - first_read, stop - first_read), computed))
        return computed
