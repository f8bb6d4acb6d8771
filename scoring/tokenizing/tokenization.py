"""Turn text into token ids: concatenate query and item, tokenize, and share the tokens that all items have in common.

The sequence scored for an item is ``encode(query + item)``. The part of it that is shared is its longest common prefix
with ``encode(query)``, so it does not matter whether tokens merge where query and item meet.

Encoding a long query again with every item would be slow. If the query can be cut, its head is encoded once, and only
the rest is encoded again with every item: docs/tokenization.md says why the tokens are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Rows, TokenIds
from scoring.quoting import QUOTED_PIECES, quote, quote_pieces
from scoring.tokenizing.packed_tokens import packed
from scoring.tokenizing.query_cut import QueryCutter
from scoring.tokenizing.recent import Recent
from scoring.tokenizing.row_encoder import RowEncoder, batches, check_query_length
from scoring.tokenizing.tokenizer_files import (
    ChatFormat,
    fingerprint_of,
    load_tokenizer,
    marks_beginnings,
    size_of_vocabulary,
)

T = TypeVar("T")

_LONG_CHARACTERS = 2**16
_LONG_TEXT = Lock()
"""Held while a text of more characters is encoded. That takes more than a hundred times the text's size in memory, and
so only one thread of the process may do it at a time."""

_SHORT_CHARACTERS = 2**11
"""Texts with no more characters together are encoded in a fraction of a millisecond."""

_MARKED = "\n"
"""A text that takes the marker of a beginning, so that what follows it is encoded as the continuation of a text."""

_MOST_TOKENS_BEFORE = 256
"""A query behind more tokens is encoded anew each time, because what is kept of it would be large."""

_BATCH_PIECES = 4_096
"""Tokens that one call turns into text. Such a call may hold the interpreter's lock."""


def always_wanted() -> None:
    """Do nothing: the default of ``stop_if_unwanted``, which raises an exception when nobody wants the result."""


MEMORY_RATIO = 9
"""About how many bytes of memory a tokenizer takes for each byte of its definition as JSON."""


class TextTokenizer:
    """A model's tokenizer. It never truncates and never pads, and is safe to use from several threads."""

    def __init__(
        self, backend: Tokenizer, *, special_tokens_split: bool = False, chat: ChatFormat | None = None
    ) -> None:
        """``backend`` is changed, and so it must belong to nobody else: transformers would change its truncation.

        special_tokens_split: whether special tokens written out in a text are treated as ordinary text (transformers'
        ``split_special_tokens``). chat: what its files say about chats.
        """
        self.chat = chat or ChatFormat()
        self._backend = backend
        self._in_one_thread = False
        self._recent = Recent()
        self._owner: str | None = None
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = special_tokens_split
        # With a large vocabulary these objects take a hundred megabytes, so no reference to them is kept.
        text = self._backend.to_str()
        self.nbytes = MEMORY_RATIO * len(text)
        """About how much memory it takes."""
        definition: dict[str, Any] = json.loads(text)
        self._cutter = QueryCutter.for_tokenizer(definition)
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens: Mapping[str, int] = {token.content: number for number, token in added.items()}
        """The id of each added token, such as ``<|im_start|>``, by its text."""
        self.special_tokens = frozenset(token.content for token in added.values() if token.special)
        """Those of the added tokens that the tokenizer calls special."""
        plain = (token for token in added.values() if not (token.lstrip or token.rstrip or token.single_word))
        self._plain_token = next((token.content for token in plain if not token.normalized), "")
        """An added token that takes nothing of the text around it, if there is one."""
        self._is_byte_level = (definition["decoder"] or {}).get("type") == "ByteLevel"
        self.marks_beginnings = marks_beginnings(definition["normalizer"]) or marks_beginnings(
            definition["pre_tokenizer"]
        )
        self.base_vocabulary = size_of_vocabulary(definition["model"]["vocab"])
        """One more than the highest token id that is not an added token."""
        self.vocabulary = max(self.base_vocabulary, *(token + 1 for token in added), 0)
        """One more than the highest token id: ``len(tokenizer)``, unless the added tokens leave holes."""
        self.fingerprint = fingerprint_of({**definition, "encode_special_tokens": special_tokens_split})
        """SHA-256 over everything that decides how text is encoded: equal fingerprints mean equal tokens."""

    @classmethod
    def load(cls, directory: Path | str) -> TextTokenizer:
        """Load the tokenizer in a model directory as transformers does. Raises :class:`CheckpointError`."""
        backend, special_tokens_split, chat = load_tokenizer(Path(directory))
        return cls(backend, special_tokens_split=special_tokens_split, chat=chat)

    def in_one_thread(self) -> TextTokenizer:
        """Return this tokenizer for a caller that must not wait for others. It keeps the interpreter's lock."""
        other = copy(self)
        other._in_one_thread = True
        other._recent = Recent()
        return other

    def of(self, owner: str) -> TextTokenizer:
        """Return this tokenizer for the texts of one owner: it encodes a short query or a label that comes again once.

        It is cheap, and all tokenizers made from one share what they keep.
        """
        other = copy(self)
        other._owner = owner
        return other

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and behind every text."""
        inner, whole = self.encode("a", add_special_tokens=False), self.encode("a")
        for start in range(len(whole) - len(inner) + 1):
            if whole[start : start + len(inner)] == inner:
                return whole[:start], whole[start + len(inner) :]
        return [], []

    def added_tokens_from(self, width: int) -> list[str]:
        """Return the added tokens whose ids are at least ``width``, in the order of their ids."""
        beyond = {token: content for content, token in self.added_tokens.items() if token >= width}
        return [beyond[token] for token in sorted(beyond)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``."""
        return self._encode_all([text], add_special_tokens)[0]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each token as text, or in the vocabulary's spelling if it does not consist of whole characters."""
        batches = (ids[start : start + _BATCH_PIECES] for start in range(0, len(ids), _BATCH_PIECES))
        return [piece for batch in batches for piece in self._pieces(batch)]

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        if not self._is_byte_level:
            return [self._spelling(token) for token in ids]
        texts = self._backend.decode_batch([[token] for token in ids], skip_special_tokens=False)
        return [self._spelling(token) if "\ufffd" in text else text for token, text in zip(ids, texts, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included. What is not a whole character is U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def single_token(self, text: str) -> int:
        """Return the one token that ``text`` becomes when it follows other text, as a label does.

        For byte-level tokenizers that is ``encode(text)``. SentencePiece tokenizers begin every text with a marker that
        stands for a space, so ``encode("Yes")`` is ``▁Yes``, the token for ``" Yes"`` behind other text. Here that
        marker is left out: ``" Yes"`` is ``▁Yes``, and ``"Yes"`` is ``Yes``, the token that continues a word or follows
        a line feed. So a label means the same with all tokenizers.

        Raises :class:`RequestError` ``label_not_single_token``, which lists the first tokens.
        """
        return self._recent.result(self._owner, text, "label", lambda: self._single_token(text))

    def _single_token(self, text: str) -> int:
        ids = self.encode_behind_text(text)
        if len(ids) != 1:
            pieces = quote_pieces(self.pieces(ids[:QUOTED_PIECES]), len(ids))
            remedy = 'give label_scoring "sequence" for labels of several tokens'
            with_blank = " " + text
            if 1 < len(ids) <= QUOTED_PIECES and len(self.encode_behind_text(with_blank)) == 1:
                remedy = f"{quote(with_blank)} is one; or {remedy}"
            message = f"label {quote(text)} is {len(ids)} tokens, not one: {pieces}; {remedy}"
            raise RequestError(ErrorCode.LABEL_NOT_SINGLE_TOKEN, message)
        return ids[0]

    def encode_behind_text(self, text: str) -> list[int]:
        """Return the token ids of ``text`` without the marker that the tokenizer puts at the beginning of a text."""
        return self._encode_all([text], False, behind_text=True)[0]

    def encode_behind_token(self, text: str) -> list[int]:
        """Return the token ids of ``text`` directly behind an added token, where some tokenizers mark a beginning."""
        token = self._plain_token
        ids = self.encode(token + text, add_special_tokens=False) if token and self.marks_beginnings else []
        return ids[1:] if ids[:1] == [self.added_tokens.get(token)] else self.encode_behind_text(text)

    def encode_as_text(self, text: str) -> list[int]:
        """Return the token ids of ``text`` behind other text, in which no added token is looked for."""
        before = self.encode(_MARKED, add_special_tokens=False)
        ids = self._encode_without_added_tokens(_MARKED + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return self._encode_without_added_tokens(text)

    def _encode_without_added_tokens(self, text: str) -> list[int]:
        normalizer, pre_tokenizer = self._backend.normalizer, self._backend.pre_tokenizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        words = [normal] if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
        return [token.id for word in words for token in self._backend.model.tokenize(word)]

    def encode_rows(self, query: str, items: Sequence[str]) -> tuple[TokenIds, Rows]:
        """Return ``encode(query)`` and, as rows, what ``encode(query + item)`` adds to the shared prefix."""
        encoder = self.row_encoder(query)
        return encoder.query, Rows.join(list(encoder(items)))

    def row_encoder(
        self,
        query: str,
        *,
        before: Sequence[int] = (),
        add_special_tokens: bool = True,
        behind_text: bool = False,
        longest: int | None = None,
        stop_if_unwanted: Callable[[], None] = always_wanted,
    ) -> RowEncoder:
        """Encode a query, and return the encoder of the items behind it.

        before: tokens that stand before the query, and count as a part of it. add_special_tokens: whether the tokenizer
        puts its special tokens around query and item. behind_text: as in :meth:`encode_each`. longest: the most tokens
        that the query may have. If it can be cut, it is encoded only until it has more. Raises QueryTooLongError.
        """
        return self._recent.result(
            self._owner if len(before) <= _MOST_TOKENS_BEFORE else None,
            query,
            (*before, add_special_tokens, behind_text, longest),
            lambda: self._row_encoder(query, before, add_special_tokens, behind_text, longest, stop_if_unwanted),
        )

    def _row_encoder(
        self,
        query: str,
        before: Sequence[int],
        add_special_tokens: bool,
        behind_text: bool,
        longest: int | None,
        stop_if_unwanted: Callable[[], None],
    ) -> RowEncoder:
        cut = self._cutter.cut(query)
        if cut is None:
            (own,) = self._encode_all([query], add_special_tokens, behind_text=behind_text)
            ids = np.array([*before, *own], np.int32)
            check_query_length(len(ids), longest)
            return RowEncoder(self, ids, len(before), query, add_special_tokens, behind_text)
        leading = self._cutter.leading_ids if add_special_tokens else None
        tokens = [*before, *(leading or ())]
        for ids_of_piece in self._encode_in_pieces(query[:cut], stop_if_unwanted):
            tokens += ids_of_piece
            check_query_length(len(tokens), longest)
        stable = len(tokens)
        tokens += self.encode(query[cut:], add_special_tokens=False)
        check_query_length(len(tokens), longest)
        return RowEncoder(self, np.array(tokens, np.int32), stable, query[cut:], add_special_tokens=False)

    def split_behind(
        self, text: str, *, longest: int | None = None, stop_if_unwanted: Callable[[], None] = always_wanted
    ) -> tuple[str, list[int]]:
        """Split a text that stands behind every item: into what must be encoded with each, and the tokens of the rest.

        longest: the most tokens that the rest may have. Raises QueryTooLongError.
        """
        cut = self._cutter.first_cut(text)
        if cut is None:
            return text, []
        tokens: list[int] = []
        for ids_of_piece in self._encode_in_pieces(text[cut:], stop_if_unwanted):
            tokens += ids_of_piece
            check_query_length(len(tokens), longest)
        return text[:cut], tokens

    def _encode_in_pieces(self, text: str, stop_if_unwanted: Callable[[], None]) -> Iterator[list[int]]:
        """Encode a text that is a part between two cuts, or between a cut and an end, without special tokens."""
        for piece in self._cutter.pieces(text):
            stop_if_unwanted()
            yield self.encode(piece, add_special_tokens=False)

    def encode_items_alone(self, items: Sequence[str], prefix_length: int) -> Iterator[Rows]:
        """Encode each item alone, without special tokens, as a row behind a complete prefix of that length."""
        for texts in batches(items):
            tokens, lengths = self.encode_batch(texts, add_special_tokens=False)
            yield Rows(tokens, lengths, np.full(len(texts), prefix_length, np.int32))

    def encode_items_first(self, query: str, items: Sequence[str]) -> Iterator[Rows]:
        """Encode ``item + query`` for each item, as rows without a prefix."""
        for texts in batches(items, len(query)):
            tokens, lengths = self.encode_batch([item + query for item in texts], add_special_tokens=True)
            yield Rows(tokens, lengths, np.zeros(len(texts), np.int32))

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[TokenIds, TokenIds]:
        """Return all tokens end to end, int32 [T], and the number of tokens of each text, int32 [N]."""
        return packed(self._encode_all(texts, add_special_tokens))

    def encode_each(
        self, texts: Iterable[str], *, add_special_tokens: bool, behind_text: bool = False
    ) -> Iterator[list[int]]:
        """Yield the tokens of each text. The texts are taken, and encoded, a batch of bounded size at a time.

        behind_text: whether the texts stand behind others, so that the tokenizer marks no beginning.
        """
        for batch in batches(texts):
            yield from self._encode_all(batch, add_special_tokens, behind_text=behind_text)

    def end_behind_cut(self, text: str) -> str | None:
        """Return the end of a text behind its last safe cut, which is encoded alone as within the text; None if none.

        The text may begin at a safe cut itself. Nothing is said of special tokens, which stand before the first one.
        """
        cut = self._cutter.cut(text)
        return None if cut is None else text[cut:]

    def beginnings(self, texts: Sequence[str], tokens: int) -> Iterator[str]:
        """Yield each text, or its beginning of so many tokens if it has more. A character is never cut."""
        for batch in batches(texts):
            ends = self._read_each(batch, False, lambda encoding: _end_of(tokens, encoding), offsets=True)
            yield from (text[:end] for text, end in zip(batch, ends, strict=True))

    def _encode_all(
        self, texts: Sequence[str], add_special_tokens: bool, *, behind_text: bool = False
    ) -> list[list[int]]:
        """Return the token ids of each text."""
        if behind_text and self.marks_beginnings:
            # SentencePiece vocabularies have no longer tokens with a line feed, so none merges with the text.
            before, *encoded = self._encode_all([_MARKED, *(_MARKED + text for text in texts)], add_special_tokens)
            return [
                ids[len(before) :] if ids[: len(before)] == before else self.encode(text, add_special_tokens)
                for text, ids in zip(texts, encoded, strict=True)
            ]
        return self._read_each(texts, add_special_tokens, lambda encoding: encoding.ids)

    def _read_each(
        self, texts: Sequence[str], add_special_tokens: bool, read: Callable[[Encoding], T], *, offsets: bool = False
    ) -> list[T]:
        """Encode each text, and return what ``read`` finds in the encodings. offsets: whether it needs offsets."""
        # The call for a batch gives the same ids and releases the interpreter's lock. But it hands the texts to the
        # tokenizer's own threads, where few short texts would wait behind all batches of other callers.
        if self._in_one_thread or sum(map(len, texts)) <= _SHORT_CHARACTERS:
            return [read(self._backend.encode(text, add_special_tokens=add_special_tokens)) for text in texts]
        encode_batch = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        with _lock_for(texts):
            return [read(encoding) for encoding in encode_batch(list(texts), add_special_tokens=add_special_tokens)]

    def _spelling(self, token: int) -> str:
        return self._backend.id_to_token(token) or ""


def _end_of(tokens: int, encoding: Encoding) -> int | None:
    """Return where the text of the first tokens ends, or None if there are no more tokens."""
    if len(encoding) <= tokens:
        return None
    # A character may consist of several tokens. If the next token belongs to the last character, that is left out.
    last, following = encoding.offsets[tokens - 1 : tokens + 1]
    return min(last[1], following[0])


def _lock_for(texts: Sequence[str]) -> AbstractContextManager[object]:
    return _LONG_TEXT if len(texts) == 1 and len(texts[0]) > _LONG_CHARACTERS else nullcontext()
