"""Draw the pictures of algorithms.md: ``pip install -r requirements-pictures.txt``, then ``python -m docs.pictures``.

The mask of the packed sequence is computed by the code of the engine. The figures of memory are those that
``python -m benchmarks.packed --out docs/pictures/packed.json`` has measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from model.packed_sequence import pack_sequences
from model.rows import item_rows
from model.score_buffer import ScoreBuffer
from scoring.layout import ChunkWork, Head, Rows

FOLDER = Path(__file__).parent / "pictures"
NOTHING, PREFIX, OWN, SKIPPED = range(4)
COLOURS = ListedColormap(["#f2f2f2", "#4878a8", "#e0923a", "#d5d5d5"])
TILE = 4


def packed_mask(groups: list[tuple[int, list[int]]]) -> tuple[np.ndarray, list[int]]:
    """Return the mask of a packed sequence, and where its parts begin. groups: (prefix length, item lengths)."""
    work = []
    for prefix, lengths in groups:
        items = [np.zeros(length, np.int32) for length in lengths]
        rows = Rows.pack(items, [prefix] * len(items))
        buffer = ScoreBuffer.of(ChunkWork(0, rows, (1,), Head.LOGITS))
        work.append((np.zeros(prefix, np.int32), item_rows(buffer)))
    size = sum(prefix + sum(lengths) for prefix, lengths in groups)
    (packed,) = pack_sequences(work, size, 1000)
    ranges = packed.arrays(size, 1000)[2]
    mask = np.full((size, size), NOTHING)
    for row, (of_prefix, own) in enumerate(ranges):
        mask[row, slice(*of_prefix)] = PREFIX
        mask[row, slice(*own)] = OWN
    begins = np.cumsum([0] + [length for prefix, lengths in groups for length in (prefix, *lengths)])
    return mask, begins.tolist()


def draw_mask(axes: Axes, mask: np.ndarray, title: str, begins: list[int], *, tiles: bool = False) -> None:
    """Draw a mask with lines between its parts. tiles: draw the tiles too, and hatch those that no token sees."""
    axes.imshow(mask, cmap=COLOURS, vmin=0, vmax=3, interpolation="nearest")
    for begin in begins[1:-1]:
        axes.axhline(begin - 0.5, color="white", linewidth=1)
        axes.axvline(begin - 0.5, color="white", linewidth=1)
    rows, columns = mask.shape
    for top in range(0, rows, TILE) if tiles else ():
        for left in range(0, columns, TILE):
            seen = mask[top : top + TILE, left : left + TILE].any()
            hatch = None if seen else "////"
            axes.add_patch(
                Rectangle(
                    (left - 0.5, top - 0.5), TILE, TILE, fill=False, edgecolor="#888888", linewidth=0.4, hatch=hatch
                )
            )
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("keys", fontsize=8)
    axes.set_ylabel("queries", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])


def serial() -> None:
    """Draw three sequences with the same query."""
    figure, every = plt.subplots(1, 3, figsize=(7, 2.6))
    for n, (axes, item) in enumerate(zip(every, (4, 2, 5), strict=True)):
        size = 10 + item
        mask = np.where(np.tril(np.ones((size, size), bool)), PREFIX, NOTHING)
        mask[10:, 10:] = np.where(mask[10:, 10:] == PREFIX, OWN, NOTHING)
        draw_mask(axes, mask, f"query + item {n + 1}", [0, 10, size])
    save(figure, "serial")


def two_parts() -> None:
    """Draw the attention of items to the blocks of a prefix, and to themselves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), width_ratios=[3, 1])
    prefix, lengths = 22, (3, 3, 3)
    mask = np.full((9, 24), PREFIX)
    mask[:, prefix:] = NOTHING
    mask[3:6, prefix - 1] = NOTHING
    draw_mask(left, mask, "all items' rows against the prefix, block by block", [0])
    for begin in range(8, 24, 8):
        left.axvline(begin - 0.5, color="black", linewidth=1.2)
    for begin in (3, 6):
        left.axhline(begin - 0.5, color="white", linewidth=1)
    own = np.full((9, 3), NOTHING)
    for n in range(len(lengths)):
        own[3 * n : 3 * n + 3] = np.where(np.tril(np.ones((3, 3), bool)), OWN, NOTHING)
    draw_mask(right, own, "each row against itself", [0])
    for begin in (3, 6):
        right.axhline(begin - 0.5, color="white", linewidth=1)
    save(figure, "two_parts")


def packed() -> None:
    """Draw two groups in one packed sequence."""
    mask, begins = packed_mask([(9, [4, 3, 5]), (6, [2, 4])])
    figure, axes = plt.subplots(figsize=(4.6, 4.6))
    draw_mask(axes, mask, "two queries with their items; hatched tiles are skipped", begins, tiles=True)
    save(figure, "packed")


def memory() -> None:
    """Draw the temporary memory of one layer's attention."""
    found = json.loads((FOLDER / "packed.json").read_text())["found"]
    figure, axes = plt.subplots(figsize=(5, 3))
    for form, colour in (("dense", "#4878a8"), ("segment", "#e0923a")):
        points = [(one["tokens"], one[form]["temporary_mb"]) for one in found if one["query"] == 300]
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=form)
    axes.set_xlabel("tokens of the packed sequence")
    axes.set_ylabel("temporary memory, MB")
    axes.set_yscale("log")
    axes.legend()
    axes.grid(visible=True, alpha=0.3)
    save(figure, "memory")


def save(figure: plt.Figure, name: str) -> None:
    """Save a picture. The same picture always gives the same file."""
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw all pictures."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "scoreline"
    for draw in (serial, two_parts, packed, memory):
        draw()


if __name__ == "__main__":
    main()
