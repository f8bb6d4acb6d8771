"""Turn a well-formed request into the arrays that are stored and scored, or raise the error that says why not.

The checks have a fixed order, so the same request always gets the same error: first what can be counted before any text
is tokenized (number of items, number of labels, lengths of texts), then labels, query, the tokens that the query takes
with all items, and then the items in batches (within a batch: token ids, delimiter, context length, total number of
tokens).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError
from scoring.item_labels import ItemLabels
from scoring.labels import check_number_of_labels, find_label_token_ids
from scoring.layout import Chunk, Rows, TokenIds
from scoring.limits import Limits
from scoring.planning.algorithms import AlgorithmSetting
from scoring.request import ScoreRequest
from scoring.templates.asked import check_fit
from scoring.templates.encoding import Prompt
from scoring.templates.wording import Wording
from scoring.tokenization import QueryTooLongError, TextTokenizer, always_wanted, check_query_length
from scoring.vocabulary import bad_id, check_range
from scoring.work import work_of_each_row

_EMPTY: TokenIds = np.zeros(0, np.int32)
_BATCH_TOKENS = 2**20

ItemEncoder = Callable[[Sequence[Any], int], Iterator[Rows]]
"""Turns items of the query's kind into rows, in batches. The number is the index of the first item in the request."""

_log = logging.getLogger(__name__)

_ITEM_FIRST_IGNORED = "item_first is ignored: the model is served in delimiter mode"
_ITEM_FIRST_SERIAL = (
    "with item_first there is no query to share: scored serially, not by {}, which this service asks for"
)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRequest:
    """A request as token ids."""

    prefix: TokenIds
    chunks: tuple[Chunk, ...]
    label_token_ids: tuple[int, ...]
    total_items: int
    prompt_tokens: int  # total length of all sequences, prefix included
    warnings: tuple[str, ...]
    item_labels: ItemLabels | None = None  # which of the labels each item has; None: all of them


def prepare(
    request: ScoreRequest,
    card: ModelCard,
    tokenizer: TextTokenizer,
    limits: Limits,
    wanted: AlgorithmSetting = "auto",
    stop_if_unwanted: Callable[[], None] = always_wanted,
) -> PreparedRequest:
    """Tokenize and check a request for the model of ``card``, and split it into chunks. Raises :class:`RequestError`.

    wanted: the algorithm that the deployment asks for. A request that can't be scored by it gets a warning.
    stop_if_unwanted: called between short steps; an exception that it raises ends the work.
    """
    limits.check_items(len(request.items))
    preparation = Preparation(request, card, tokenizer, limits, wanted, stop_if_unwanted)
    return preparation.prepared((*preparation.add(request.items), *preparation.finish()))


class Preparation:
    """Prepares a request whose items arrive little by little.

    Chunks and errors are those that :func:`prepare` gives for all items at once. After a :class:`RequestError` the
    preparation can't be continued.
    """

    def __init__(
        self,
        request: ScoreRequest,
        card: ModelCard,
        tokenizer: TextTokenizer,
        limits: Limits,
        wanted: AlgorithmSetting = "auto",
        stop_if_unwanted: Callable[[], None] = always_wanted,
    ) -> None:
        """Check labels and query. Of the items of ``request``, only the lengths are checked."""
        check_number_of_labels(request, limits)
        limits.check_query_and_labels(request.query, request.labels or ())
        if request.template is not None:
            check_fit(request.template, tokenizer)
        if request.wording is not None:
            of_client = "query_template" if request.template is None else "instruction"
            limits.check_wording(request.wording.sent_characters, of_client)
        limits.check_item_texts(request.items)
        self.label_token_ids, self.item_labels = find_label_token_ids(request, card, tokenizer, limits)
        self._query = _encode_query(request, card, tokenizer, stop_if_unwanted)
        self.prefix = self._query.prefix
        self.repeated_characters = self._query.repeated_characters  # of the query, with each item
        self.warnings = _warnings(request, card, wanted)
        self.is_text = isinstance(request.query, str)  # so the items must be texts, too
        self.total_items = 0  # so far
        self.prompt_tokens = 0  # so far
        self._stored_tokens = 0  # so far
        self._card = card
        self._limits = limits
        self._stop_if_unwanted = stop_if_unwanted
        self._rest = Rows.join([])  # rows that are not in a chunk yet

    def add(self, items: list[str] | list[list[int]]) -> list[Chunk]:
        """Add items, which must be of the query's kind, and return the chunks that are now complete."""
        self._limits.check_items(self.total_items + len(items))
        self._limits.check_item_texts(items, self.total_items)
        self._check_price_of_the_query(len(items))
        chunks: list[Chunk] = []
        for rows in self._checked(self._query.encode_items(items, self.total_items)):
            chunks += self._split(Rows.join([self._rest, rows]), last=False)
        return chunks

    def finish(self) -> list[Chunk]:
        """Return the chunk of the remaining rows, if there are any. Call it after the last item."""
        return self._split(self._rest, last=True)

    def prepared(self, chunks: tuple[Chunk, ...]) -> PreparedRequest:
        """Return the request as prepared so far, with these chunks."""
        return PreparedRequest(
            self.prefix,
            chunks,
            self.label_token_ids,
            self.total_items,
            self.prompt_tokens,
            self.warnings,
            self.item_labels,
        )

    def _check_price_of_the_query(self, more_items: int) -> None:
        """Refuse items if the query alone, counted once for each of them, exceeds a limit. No row exists yet."""
        query, limits = self._query, self._limits
        limits.check_tokens(
            self.prompt_tokens + more_items * query.tokens, self._stored_tokens + more_items * query.stored_tokens
        )
        limits.check_repeated_characters(query.repeated_characters, self.total_items + more_items)

    def _checked(self, batches: Iterator[Rows]) -> Iterator[Rows]:
        """Check each batch against the vocabulary, the context length and the limits on tokens, and count it."""
        card = self._card
        self._stop_if_unwanted()
        for rows in batches:
            first = self.total_items
            if len(rows.tokens) and int(rows.tokens.max()) >= card.vocabulary:
                place = int(np.argmax(rows.tokens >= card.vocabulary))
                raise bad_id(int(rows.tokens[place]), card, f"items[{first + _row_of(rows, place)}]")
            lengths = rows.sequence_lengths
            if len(lengths) and int(lengths.min()) == 0:
                where = f"items[{first + int(np.argmin(lengths))}]"
                raise RequestError(ErrorCode.EMPTY_QUERY, f"query and {where} together have no tokens", param=where)
            if len(lengths) and int(lengths.max()) > card.context_length:
                n = int(np.argmax(lengths > card.context_length))
                raise _too_long(f"items[{first + n}]", int(lengths[n]), card)
            self.prompt_tokens += int(lengths.sum(dtype=np.int64))
            self._stored_tokens += len(rows.tokens)
            self._limits.check_tokens(self.prompt_tokens, self._stored_tokens)
            self.total_items += len(rows)
            yield rows
            self._stop_if_unwanted()

    def _split(self, rows: Rows, *, last: bool) -> list[Chunk]:
        """Split rows into chunks. Unless they are the last, keep those whose chunk may still grow."""
        found: list[Chunk] = []
        first_item = self.total_items - len(rows)
        work = work_of_each_row(rows)
        # int64, because a hundred thousand long items have more tokens than an int32 can count.
        own_ends = np.cumsum(rows.lengths, dtype=np.int64)
        start = own_before = 0
        while start < len(rows):
            # Summed from the chunk's first row on, so that its end does not depend on how the rows arrived.
            ends = np.cumsum(work[start : start + self._limits.chunk_items])
            stop = start + max(1, int(np.searchsorted(ends, self._limits.chunk_tokens, side="right")))
            if not last and stop == len(rows) and stop - start < self._limits.chunk_items:
                break
            own_after = int(own_ends[stop - 1])
            tokens = rows.tokens[own_before:own_after]
            own = Rows(tokens, rows.lengths[start:stop], rows.prefix_ends[start:stop])
            found.append(Chunk(first_item + start, own))
            start, own_before = stop, own_after
        self._rest = Rows(rows.tokens[own_before:], rows.lengths[start:], rows.prefix_ends[start:])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """An encoded query, and what it takes with each item."""

    prefix: TokenIds
    encode_items: ItemEncoder  # the rows are not checked yet
    tokens: int  # of the query in each sequence
    stored_tokens: int = 0  # of the query in each row: all of them if there is no prefix that the items share
    repeated_characters: int = 0  # of the query that are encoded again with each item


def _encode_query(
    request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> _Query:
    item_first = request.options.item_first and card.delimiter is None
    try:
        if isinstance(request.query, str) and request.wording is not None:
            return _encode_prompt(request.query, request.wording, card, tokenizer, stop_if_unwanted)
        if isinstance(request.query, str):
            return _encode_text_query(request.query, item_first, card, tokenizer, stop_if_unwanted)
        return _encode_id_query(request.query, item_first, card)
    except QueryTooLongError as error:
        # Every item is too long then, and the error is that of the first one. It may not have arrived yet.
        too_long = "query and items[0] make" if request.items else "the query alone has"
        message = f"{too_long} at least {error.tokens} tokens; the model's context is {card.context_length}"
        param = "items[0]" if request.items else "query"
        raise RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param=param) from None


def _encode_text_query(
    query: str, item_first: bool, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> _Query:
    encoder = tokenizer.row_encoder(query, longest=card.context_length, stop_if_unwanted=stop_if_unwanted)
    prefix = _checked_prefix(encoder.query, card)
    if card.delimiter is not None:
        delimiter = card.delimiter
        return _Query(
            prefix,
            lambda items, first: _without_delimiter(tokenizer.encode_items_alone(items, len(prefix)), delimiter, first),
            tokens=len(prefix),
        )
    if item_first:
        return _Query(
            _EMPTY,
            lambda items, _: tokenizer.encode_items_first(query, items),
            tokens=len(prefix),
            stored_tokens=len(prefix),
            repeated_characters=len(query),
        )
    return _Query(
        prefix, lambda items, _: encoder(items), tokens=len(prefix), repeated_characters=encoder.repeated_characters
    )


def _encode_prompt(
    query: str, wording: Wording, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> _Query:
    """Encode a query in the wording of a template. What stands behind the items is stored in each row."""
    if not query:
        raise RequestError(ErrorCode.EMPTY_QUERY, "query has no tokens", param="query")
    delimiter = card.delimiter
    encoder = Prompt(wording, query, tokenizer, delimiter).row_encoder(card.context_length, stop_if_unwanted)
    prefix, behind = encoder.query, len(encoder.suffix)
    if len(prefix) and int(prefix.max()) >= card.vocabulary:
        raise bad_id(int(prefix.max()), card, "query")
    if delimiter is not None and np.count_nonzero(prefix == delimiter) > 1:
        raise _delimiter_found(delimiter, "query")

    def encode_items(items: Sequence[str], first: int) -> Iterator[Rows]:
        rows = encoder(items)
        return rows if delimiter is None else _without_delimiter(rows, delimiter, first)

    return _Query(
        prefix,
        encode_items,
        tokens=len(prefix) + behind,
        stored_tokens=behind,
        repeated_characters=encoder.repeated_characters,
    )


def _encode_id_query(query: list[int], item_first: bool, card: ModelCard) -> _Query:
    check_range(query, card, "query")
    prefix = _checked_prefix(np.array(query, np.int32), card)

    def encode_items(items: Sequence[list[int]], first: int) -> Iterator[Rows]:
        _check_item_range(items, card, first)
        if item_first:
            return _pack(items, 0, suffix=query)
        packed = _pack(items, len(prefix))
        return packed if card.delimiter is None else _without_delimiter(packed, card.delimiter, first)

    if item_first:
        return _Query(_EMPTY, encode_items, tokens=len(prefix), stored_tokens=len(prefix))
    return _Query(prefix, encode_items, tokens=len(prefix))


def _pack(items: Sequence[list[int]], prefix_length: int, suffix: Sequence[int] = ()) -> Iterator[Rows]:
    """Pack items of token ids, each followed by ``suffix``, in batches of bounded size."""
    step = max(1, _BATCH_TOKENS // (len(suffix) + 1))
    for start in range(0, len(items), step):
        batch = items[start : start + step]
        lengths = np.fromiter(map(len, batch), np.int32, len(batch)) + np.int32(len(suffix))
        tokens = chain.from_iterable(chain.from_iterable((item, suffix) for item in batch))
        packed = np.fromiter(tokens, np.int32, int(lengths.sum()))
        yield Rows(packed, lengths, np.full(len(batch), prefix_length, np.int32))


def _checked_prefix(query: TokenIds, card: ModelCard) -> TokenIds:
    """Return the tokens of the query, with the delimiter in delimiter mode."""
    if not len(query):
        raise RequestError(ErrorCode.EMPTY_QUERY, "query has no tokens", param="query")
    if int(query.max()) >= card.vocabulary:
        raise bad_id(int(query.max()), card, "query")
    if card.delimiter is not None and card.delimiter in query:
        raise _delimiter_found(card.delimiter, "query")
    prefix = query if card.delimiter is None else np.append(query, np.int32(card.delimiter))
    check_query_length(len(prefix), card.context_length)
    return prefix


def _check_item_range(items: Sequence[list[int]], card: ModelCard, first: int) -> None:
    filled = [item for item in items if item]
    if filled and not 0 <= min(map(min, filled)) <= max(map(max, filled)) < card.vocabulary:
        for n, item in enumerate(items, first):
            check_range(item, card, f"items[{n}]")


def _without_delimiter(batches: Iterator[Rows], delimiter: int, first: int) -> Iterator[Rows]:
    for rows in batches:
        found = np.flatnonzero(rows.tokens == delimiter)
        if len(found):
            raise _delimiter_found(delimiter, f"items[{first + _row_of(rows, int(found[0]))}]")
        yield rows
        first += len(rows)


def _row_of(rows: Rows, token: int) -> int:
    """Return the row that the packed token at index ``token`` belongs to."""
    return int(np.searchsorted(np.cumsum(rows.lengths, dtype=np.int64), token, side="right"))


def _warnings(request: ScoreRequest, card: ModelCard, wanted: AlgorithmSetting) -> tuple[str, ...]:
    if not request.options.item_first:
        return ()
    if card.delimiter is not None:
        _log.warning(_ITEM_FIRST_IGNORED)
        return (_ITEM_FIRST_IGNORED,)
    return () if wanted in ("auto", "serial") else (_ITEM_FIRST_SERIAL.format(wanted),)


def _delimiter_found(delimiter: int, param: str) -> RequestError:
    message = f"{param} holds token {delimiter}, which this model's deployment reserves as the delimiter"
    return RequestError(ErrorCode.DELIMITER_IN_INPUT, message, param=param)


def _too_long(param: str, length: int, card: ModelCard) -> RequestError:
    message = f"query and {param} make {length} tokens; the model's context is {card.context_length}"
    return RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param=param)
