"""Labels of any number of tokens behind the rows of items, in the tokens of the whole text.

The targets of a label are what ``encode(query + item + label)`` has behind its common prefix with
``encode(query + item)``. Encoding the whole text again for each label would be slow. If the text before the labels can
be cut, only what stands behind its last cut is encoded with each label: docs/tokenization.md says why that is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from scoring.layout import TokenIds
from scoring.tokenizing.packed_tokens import packed
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted

MOST_PAIRS = 2**16
"""Pairs of a window and a label that are encoded at a time, or characters of these labels if there are more.

A pair takes up to 200 bytes while it is encoded, and 8 afterwards. A label rarely has more tokens than characters.
"""
MOST_REMEMBERED = 2**17
"""Pairs and tokens of labels that are remembered, at most, but for those of the last windows."""


class Window(NamedTuple):
    """What is encoded with each label: the text before them, or its end if the rest is encoded by itself."""

    text: str
    add_special_tokens: bool  # whether the tokenizer puts its special tokens around that text and the label
    behind_text: bool = False  # whether the text stands behind other text, so that the tokenizer marks no beginning
    last: tuple[int, ...] = ()  # tokens behind the label that the tokenizer does not put there itself

    @property
    def kind(self) -> tuple[bool, bool]:
        """How it is encoded. Windows of one kind are encoded together."""
        return self.add_special_tokens, self.behind_text


LabelPlace = Callable[[str], Window]
"""Returns what stands before the labels behind an item."""


class Behind(NamedTuple):
    """The labels behind an item, one after another."""

    replaced: TokenIds  # how many tokens at the end of the item's sequence merge with each label, int32 [L]
    lengths: TokenIds  # the tokens of each label, with what merges with them, int32 [L]
    tokens: TokenIds  # those of all labels, end to end, int32 [T]

    @classmethod
    def of(cls, replaced: Sequence[int], targets: Sequence[Sequence[int]]) -> Behind:
        """Pack labels that are given as one sequence of tokens each."""
        tokens, lengths = packed(targets)
        return cls(np.array(replaced, np.int32), lengths, tokens)


@dataclass(slots=True)
class TextLabels:
    """Encodes the labels of one request behind its items. What was found behind a window is remembered for the next."""

    tokenizer: TextTokenizer
    labels: Sequence[str]
    place: LabelPlace
    count_characters: Callable[[int], None]  # is called with how many are about to be encoded, and may raise
    stop_if_unwanted: Callable[[], None] = always_wanted
    _known: dict[Window, Behind] = field(default_factory=dict)
    _remembered: int = 0  # the pairs and tokens of what is known

    def behind(self, items: Sequence[str]) -> Iterator[Behind]:
        """Yield the labels behind each item."""
        step = windows_at_a_time(self.labels)
        for start in range(0, len(items), step):
            windows = [self._window(item) for item in items[start : start + step]]
            if self._remembered > MOST_REMEMBERED:
                self._known.clear()
                self._remembered = 0
            new = list(dict.fromkeys(window for window in windows if window not in self._known))
            for kind in dict.fromkeys(window.kind for window in new):
                self._encode([window for window in new if window.kind == kind])
            yield from (self._known[window] for window in windows)

    def _window(self, item: str) -> Window:
        window = self.place(item)
        end = self.tokenizer.end_behind_cut(window.text)
        return window if end is None else Window(end, add_special_tokens=False, last=window.last)

    def _encode(self, windows: Sequence[Window]) -> None:
        """Encode the labels behind windows of one kind."""
        if not windows:
            return
        of_labels = sum(map(len, self.labels))
        self.count_characters(
            sum(len(window.text) * (1 + len(self.labels)) for window in windows) + of_labels * len(windows)
        )
        texts = (window.text + label for window in windows for label in ("", *self.labels))
        encoded = self.tokenizer.encode_each(
            texts, add_special_tokens=windows[0].add_special_tokens, behind_text=windows[0].behind_text
        )
        for window in windows:
            self.stop_if_unwanted()
            alone = (*next(encoded), *window.last)
            whole = [(*next(encoded), *window.last) for _ in self.labels]
            shared = [_common(alone, tokens) for tokens in whole]
            targets = [tokens[kept:] for tokens, kept in zip(whole, shared, strict=True)]
            known = self._known[window] = Behind.of([len(alone) - kept for kept in shared], targets)
            self._remembered += len(known.lengths) + len(known.tokens)


def windows_at_a_time(labels: Sequence[str]) -> int:
    """Return with how many windows labels are encoded at a time, at least one."""
    return max(1, MOST_PAIRS // max(1, len(labels), sum(map(len, labels))))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading tokens two sequences share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
