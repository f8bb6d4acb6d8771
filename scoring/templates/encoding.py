"""Turn the wording of a prompt, a query and items into tokens.

A prompt is a text like any other: the template's own text and what the client has sent are joined, and the tokenizer
encodes the joined text. So an added token such as ``<|im_end|>`` is read as one wherever it is spelled, in a document
too, as the code of rerankers' publishers does it. If a template consists of several pieces, each is such a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scoring.templates.wording import Piece, Place, Wording
from scoring.tokenizing.row_encoder import RowEncoder
from scoring.tokenizing.text_labels import LabelPlace
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted


@dataclass(frozen=True, slots=True)
class Prompt:
    """A wording with its query, for one tokenizer."""

    wording: Wording
    query: str
    tokenizer: TextTokenizer
    delimiter: int | None = None  # the token between query and item in delimiter mode

    def row_encoder(
        self, longest: int | None = None, stop_if_unwanted: Callable[[], None] = always_wanted
    ) -> RowEncoder:
        """Encode what all items share, and return the encoder of the items behind it.

        longest: the most tokens that the shared part may have. Raises QueryTooLongError.
        """
        pieces = self.wording.item
        at = next(n for n, piece in enumerate(pieces) if Place.ITEM in piece)
        place = pieces[at].index(Place.ITEM)
        # Both hold texts that are tokenized apart. The item stands behind the last of them.
        of_query = [self._text(piece) for piece in self.wording.query]
        of_item = [*map(self._text, pieces[:at]), self._text(pieces[at][:place])]
        is_one_text = self._is_one_text
        first, last = self._around

        def encode(text: str, before: Sequence[int]) -> RowEncoder:
            return self.tokenizer.row_encoder(
                text,
                before=before,
                add_special_tokens=is_one_text,
                longest=longest,
                stop_if_unwanted=stop_if_unwanted,
            )

        ids = first
        texts = [*of_query[:-1], of_query[-1] + of_item[0], *of_item[1:]]
        if self.delimiter is not None:
            for text in of_query:
                ids = encode(text, ids).query.tolist()
            ids = [*ids, *last, self.delimiter]
            texts, last = of_item, []
        for text in texts[:-1]:
            ids = encode(text, ids).query.tolist()
        after, constant = self.tokenizer.split_behind(
            self._text(pieces[at][place + 1 :]), longest=longest, stop_if_unwanted=stop_if_unwanted
        )
        behind = [self.tokenizer.encode(self._text(piece), add_special_tokens=False) for piece in pieces[at + 1 :]]
        suffix = np.array([token for tokens in (constant, *behind, last) for token in tokens], np.int32)
        return replace(encode(texts[-1], ids), after=after, suffix=suffix)

    def label_place(self, encoder: RowEncoder) -> LabelPlace:
        """Return where labels of any number of tokens stand: they go on with the last piece.

        encoder: as :meth:`row_encoder` has returned it.
        """
        last = tuple(self._around[1]) if self.delimiter is None else ()
        *_, piece = self.wording.item
        if Place.ITEM not in piece:
            text = self._text(piece)
            return LabelPlace(lambda _: text, add_special_tokens=False, last=last)
        after = self._text(piece[piece.index(Place.ITEM) + 1 :])
        return LabelPlace(lambda item: encoder.tail + item + after, encoder.add_special_tokens, last)

    @property
    def _is_one_text(self) -> bool:
        return self.delimiter is None and len(self.wording.query) == len(self.wording.item) == 1

    @property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind the pieces. The tokenizer itself puts them around a single text."""
        return ([], []) if self._is_one_text else self.tokenizer.around

    def _text(self, piece: Piece) -> str:
        """Return the text of a piece without the place of the item."""
        texts = {Place.INSTRUCTION: self.wording.instruction, Place.QUERY: self.query}
        return "".join(part if isinstance(part, str) else texts[part] for part in piece)
