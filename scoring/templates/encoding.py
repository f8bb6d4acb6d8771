"""Turn the wording of a prompt, a query and items into tokens.

A prompt is a text: the template's own text and what the client has sent are joined, and the tokenizer encodes the
joined text. If a template consists of several pieces, each is such a text. But a control token, as ``<|im_end|>`` is
one, is the template's alone. Where the client spells it, it is plain text (scoring/tokenizing/control_tokens.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scoring.templates.wording import Piece, Place, Wording
from scoring.tokenizing.control_tokens import ControlTokens, TextPart
from scoring.tokenizing.row_encoder import RowEncoder, check_query_length
from scoring.tokenizing.text_labels import LabelPlace, Window
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted

_Texts = list[tuple[str, bool]]
"""Texts that are encoded together, each with whether the client has sent it."""


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

        longest: the most tokens that the shared part may have. Raises QueryTooLongError and ControlTokenError.
        """
        pieces = self.wording.item
        at = next(n for n, piece in enumerate(pieces) if Place.ITEM in piece)
        place = pieces[at].index(Place.ITEM)
        # Both hold texts that are tokenized apart. The item stands behind the last of them.
        of_query = [self._texts(piece) for piece in self.wording.query]
        of_item = [*map(self._texts, pieces[:at]), self._texts(pieces[at][:place])]
        control_tokens = ControlTokens(self.tokenizer, self.wording.own_text)
        is_one_text = self._is_one_text

        def encode(texts: _Texts, before: Sequence[int]) -> RowEncoder:
            parts = control_tokens.split_written(texts)
            end = TextPart("", as_text=False) if parts[-1].as_text else parts.pop()
            if parts:
                opening = self.tokenizer.around[0] if is_one_text else []
                before = [*before, *opening, *control_tokens.encode(parts)]
                check_query_length(len(before), longest)
            return self.tokenizer.row_encoder(
                end.text,
                before=before,
                add_special_tokens=is_one_text and not parts,
                behind_text=bool(parts),
                longest=longest,
                stop_if_unwanted=stop_if_unwanted,
            )

        ids = [] if is_one_text else self.tokenizer.around[0]
        texts = [*of_query[:-1], of_query[-1] + of_item[0], *of_item[1:]]
        if self.delimiter is not None:
            for text in of_query:
                ids = encode(text, ids).query.tolist()
            ids = [*ids, *self.tokenizer.around[1], self.delimiter]
            texts = of_item
        for text in texts[:-1]:
            ids = encode(text, ids).query.tolist()
        encoder = encode(texts[-1], ids)
        after, constant = self.tokenizer.split_behind(
            _own_text(pieces[at][place + 1 :]), longest=longest, stop_if_unwanted=stop_if_unwanted
        )
        behind = [self.tokenizer.encode(_own_text(piece), add_special_tokens=False) for piece in pieces[at + 1 :]]
        suffix = [token for tokens in (constant, *behind, self._last(encoder)) for token in tokens]
        return replace(encoder, after=after, suffix=np.array(suffix, np.int32), control_tokens=control_tokens)

    def label_place(self, encoder: RowEncoder) -> LabelPlace:
        """Return where labels of any number of tokens stand: they go on with the last piece.

        encoder: as :meth:`row_encoder` has returned it.
        """
        last = tuple(self._last(encoder))
        *_, piece = self.wording.item
        if Place.ITEM not in piece:
            of_piece = Window(_own_text(piece), add_special_tokens=False, last=last)
            return lambda _: of_piece
        whole = replace(encoder, after=_own_text(piece[piece.index(Place.ITEM) + 1 :]))

        def place(item: str) -> Window:
            *before, end = whole.parts(item)
            if not before:
                return Window(end.text, encoder.add_special_tokens, encoder.behind_text, last)
            text = "" if end.as_text else end.text
            closing = tuple(self.tokenizer.around[1]) if encoder.add_special_tokens else last
            return Window(text, add_special_tokens=False, behind_text=True, last=closing)

        return place

    @property
    def _is_one_text(self) -> bool:
        return self.delimiter is None and len(self.wording.query) == len(self.wording.item) == 1

    def _last(self, encoder: RowEncoder) -> list[int]:
        """Return the special tokens at the end of a row that the tokenizer itself does not put there."""
        return [] if encoder.add_special_tokens or self.delimiter is not None else self.tokenizer.around[1]

    def _texts(self, piece: Piece) -> _Texts:
        instruction = self.wording.instruction, self.wording.sent_characters > 0
        at = {Place.INSTRUCTION: instruction, Place.QUERY: (self.query, True)}
        return [(part, False) if isinstance(part, str) else at[part] for part in piece]


def _own_text(piece: Piece) -> str:
    """Return the text of a piece, or of a part of one, in which nothing of a client stands."""
    return "".join(part for part in piece if isinstance(part, str))
