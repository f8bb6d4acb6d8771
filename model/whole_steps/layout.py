"""Lays out the extensions of a step as the arrays that its program takes.

All arrays are int32; T, N, S and n are those of :class:`model.whole_steps.shape.StepShape`. Origins, windows and long
chunks are for recurrent layers, and not taken without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from model.forward import AttentionRows, Extension
from model.layers.delta_rule import CHUNK
from model.whole_steps.filling import prefix_of
from model.whole_steps.shape import StepShape
from scoring.layout import TokenIds
from scoring.planning.estimates import slot_rows


@dataclass(frozen=True, slots=True, eq=False)
class ItemStep:
    """A step of items, each behind its own prefix."""

    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    table: TokenIds  # [tiles, N]: the blocks of each tile's prefix
    counts: TokenIds  # [tiles]: how many of them its rows see
    ends: TokenIds  # [T]: how many tokens of the prefix each row sees
    item_rows: TokenIds  # [S]: this and the next two are a :class:`model.attention.contract.ItemSlots`
    item_begins: TokenIds  # [S]
    item_slots: TokenIds  # [T]
    logit_positions: TokenIds  # [n]: the rows that are read, item by item
    origins: TokenIds  # [tiles]: the block behind whose state the items of a tile begin; -1 for none
    windows: TokenIds
    """[T, inputs]: the inputs of the convolution of each row, its own last. First come the inputs that the prefix of
    each tile keeps, inputs - 1 of them, and then the rows."""
    long_chunks: np.int32  # how many of the first chunks belong to slots that are longer than a chunk

    @classmethod
    def of(cls, items: Sequence[Extension], shape: StepShape) -> ItemStep:
        """Lay out items that fit into a step. Those of one prefix have to be neighbours.

        If one of them is read at several tokens, all of them are.
        """
        length = np.array([len(item.tokens) for item in items])
        prefix_end = np.array([item.start for item in items])
        table, start, tile, first = np.zeros((shape.tiles, shape.longest), np.int32), np.empty_like(length), 0, 0
        origins = np.full(shape.tiles, -1, np.int32)
        for _, of_prefix in groupby(items, prefix_of):
            together = list(of_prefix)
            numbers = slice(first, first + len(together))
            rows = np.cumsum(length[numbers])
            start[numbers] = tile * shape.tile_rows + rows - length[numbers]
            tiles = slice(tile, tile - (-int(rows[-1]) // shape.tile_rows))
            table[tiles, : len(together[0].table)] = together[0].table
            origins[tiles] = _block_before(together[0], shape) if shape.inputs else -1
            tile, first = tiles.stop, numbers.stop
        slotted = AttentionRows.of(items, start)
        slot_length = np.array([slot_rows(one) for one in slotted.lengths.tolist()])
        slot, longest_first = np.empty_like(slot_length), np.argsort(-slot_length, kind="stable")
        # Each slot begins at a multiple of its length, because the longest ones come first.
        slot[longest_first] = np.cumsum(slot_length[longest_first]) - slot_length[longest_first]
        # For each row of an item: its place in the item, in the step, and in the slots.
        offset = slotted.offsets()
        row = np.repeat(slotted.own_begins - slotted.shared, slotted.own) + offset
        row_slot = np.repeat(slot, slotted.own) + offset
        # For each row of a slot, those among them that a tail shares: its place in the step, and in the slots.
        in_slot = np.arange(int(slotted.lengths.max()))[None]
        slot_row, filled_slot = slotted.places(in_slot), slot[:, None] + in_slot
        is_filled = in_slot < slotted.lengths[:, None]
        ends = _filled(shape.tokens, row, np.repeat(prefix_end, length))
        reads = np.array([item.read for item in items])
        read = np.repeat(start + length - np.cumsum(reads), reads) + np.arange(int(reads.sum()))
        most_read = shape.most_read(everywhere=items[0].read > 1)
        return cls(
            _filled(shape.tokens, row, np.concatenate([item.tokens for item in items])),
            _filled(shape.tokens, row, np.repeat(prefix_end, length) + offset),
            table,
            _block_counts(ends, shape),
            ends,
            _filled(shape.slot_rows, filled_slot[is_filled], slot_row[is_filled]),
            _filled(shape.slot_rows, filled_slot[is_filled], np.repeat(slot, slotted.lengths), padding=shape.slot_rows),
            _filled(shape.tokens, row, row_slot, padding=shape.slot_rows),
            _filled(most_read, slice(len(read)), read),
            origins,
            _filled(shape.tokens, row, _windows(slotted, row, shape)),
            np.int32(slot_length[slot_length > CHUNK].sum() // CHUNK),
        )

    @property
    def arrays(self) -> tuple[TokenIds, ...]:
        """What :func:`model.whole_steps.extend.extend` takes beside weights and pool."""
        tiles, slots = (self.table, self.counts, self.ends), (self.item_rows, self.item_begins, self.item_slots)
        of_states = (self.origins, self.windows, self.long_chunks) if self.windows.shape[1] else ()
        return self.tokens, self.positions, *of_states, *tiles, *slots, self.logit_positions


@dataclass(frozen=True, slots=True, eq=False)
class PrefillStep:
    """A step of pieces of prefixes, those of one prefix in order."""

    tokens: TokenIds  # [T]
    positions: TokenIds  # [T]
    table: TokenIds  # [tiles, N]: the blocks of each tile's prefix
    counts: TokenIds  # [tiles]: how many of them its rows see
    ends: TokenIds  # [T]: how many tokens of the prefix each row sees, itself among them
    places: TokenIds  # [tiles, 2]: the block that a tile's keys and values go to, and where in it they begin
    logit_positions: TokenIds  # [tiles]: the last row of each piece
    origins: TokenIds  # [tiles]: the block behind whose state each tile begins; -1 for none
    windows: TokenIds  # [T, inputs]: as of items

    @classmethod
    def of(cls, pieces: Sequence[Extension], shape: StepShape) -> PrefillStep:
        """Lay out pieces that fit into a step."""
        rows = shape.tile_rows
        tokens, ends = np.zeros(shape.tokens, np.int32), np.zeros(shape.tokens, np.int32)
        table, places = np.zeros((shape.tiles, shape.longest), np.int32), np.zeros((shape.tiles, 2), np.int32)
        logit_positions = np.zeros(shape.tiles, np.int32)
        places[:, 0] = shape.spare_block
        origins, windows = np.full(shape.tiles, -1, np.int32), np.zeros((shape.tokens, shape.inputs), np.int32)
        behind = dict[int, int]()  # which row comes behind each block that is computed in this step
        tile = 0
        for number, piece in enumerate(pieces):
            count, length = -(-len(piece.tokens) // rows), len(piece.tokens)
            tiles, of_piece = slice(tile, tile + count), slice(tile * rows, tile * rows + length)
            tokens[of_piece] = piece.tokens
            ends[of_piece] = np.arange(piece.start + 1, piece.start + length + 1)
            table[tiles, : len(piece.table)] = piece.table
            offset = np.arange(0, length, rows)
            places[tiles, 0] = piece.stored[offset // shape.block_tokens]
            places[tiles, 1] = offset % shape.block_tokens
            logit_positions[number] = of_piece.stop - 1
            before = _block_before(piece, shape)
            origins[tiles] = [before, *places[tile : tile + count - 1, 0]]
            offsets = np.arange(length)[:, None] + np.arange(1 - shape.inputs, 1)
            first = behind.get(before, (tile + 1) * (shape.inputs - 1) - shape.kept_inputs)
            windows[of_piece] = shape.kept_inputs + offsets + np.where(offsets < 0, first, tile * rows)
            behind |= {
                block: of_piece.start + (n + 1) * shape.block_tokens for n, block in enumerate(piece.stored.tolist())
            }
            tile += count
        counts, positions = _block_counts(ends, shape), np.maximum(ends - 1, 0)
        return cls(tokens, positions, table, counts, ends, places, logit_positions, origins, windows)

    @property
    def arrays(self) -> tuple[TokenIds, ...]:
        """What :func:`model.whole_steps.prefill.prefill` takes beside weights and pool."""
        tiles = self.table, self.counts, self.ends
        of_states = (self.origins, self.windows) if self.windows.shape[1] else ()
        return self.tokens, self.positions, *of_states, *tiles, self.places, self.logit_positions


def _block_before(extension: Extension, shape: StepShape) -> int:
    """Return the block behind which an extension begins; -1 if it begins a sequence."""
    return int(extension.table[(extension.start - 1) // shape.block_tokens]) if extension.start else -1


def _windows(slotted: AttentionRows, row: npt.NDArray[np.int64], shape: StepShape) -> TokenIds:
    """Return the windows of the rows of items, one after another: see :attr:`ItemStep.windows`."""
    if not shape.inputs:
        return np.zeros((len(row), 0), np.int32)
    places, kept = slotted.windows(shape.inputs), shape.inputs - 1
    of_tile = (row // shape.tile_rows + 1)[:, None] * kept
    return np.where(places < 0, of_tile, shape.kept_inputs).astype(np.int32) + places.astype(np.int32)


def _block_counts(ends: TokenIds, shape: StepShape) -> TokenIds:
    """Return how many blocks the rows of each tile see: [tiles]."""
    seen: TokenIds = ends.reshape(shape.tiles, -1).max(axis=1)
    return -(-seen // shape.block_tokens)


def _filled(size: int, at: npt.NDArray[np.int64] | slice, values: npt.NDArray[Any], padding: int = 0) -> TokenIds:
    """Return int32 [size, ...] with values at some indices, and ``padding`` elsewhere."""
    array = np.full((size, *values.shape[1:]), padding, np.int32)
    array[at] = values
    return array
