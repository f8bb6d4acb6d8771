"""The sizes of whole steps, the same for all steps of a model."""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 128
"""Rows of a tile: the chunks that TPU kernels compute at a time. A prefix leaves half of them empty on average."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of a step, and of the blocks that it sees."""

    tokens: int  # T: rows of a step, a power of two
    tile_rows: int  # all rows of a tile see the same prefix; a power of two, at most ``block_tokens``
    block_tokens: int  # s: tokens of a block of the pool, a power of two
    blocks: int  # B: blocks of the pool, the last of which no prefix has: padding is written to it
    longest: int  # N: blocks of the longest sequence that is served
    max_items: int  # n: items of a step, at most
    inputs: int = 0  # of the convolution in recurrent layers; 0: there are none

    @classmethod
    def of(
        cls, tokens: int, block_tokens: int, prefix_blocks: int, longest: int, max_items: int, inputs: int = 0
    ) -> StepShape:
        """Return the sizes of steps, with as many blocks for prefixes as wanted, and one for padding."""
        tile_rows = min(TILE_ROWS, block_tokens, tokens)
        return cls(tokens, tile_rows, block_tokens, prefix_blocks + 1, longest, max_items, inputs)

    @property
    def tiles(self) -> int:
        """Tiles of a step."""
        return self.tokens // self.tile_rows

    @property
    def slot_rows(self) -> int:
        """S: rows of the slots of a step's items. A slot is less than twice as long as its item, or the shortest."""
        return 2 * self.tokens

    def most_read(self, *, everywhere: bool) -> int:
        """Return how many rows of a step of items are read: of items that are read at several positions, any row."""
        return self.tokens if everywhere else self.max_items

    @property
    def kept_inputs(self) -> int:
        """How many inputs of the convolution the prefixes of all tiles keep."""
        return self.tiles * (self.inputs - 1)

    @property
    def spare_block(self) -> int:
        """The block that no prefix has."""
        return self.blocks - 1
