"""From a well-formed request to the arrays that are stored and scored, or to the error that says why not.

Checks run in a fixed order, so that the same request always gets the same error: number of items, labels, query, then
the items in batches, in order (within a batch: ids, delimiter, context, tokens in all).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from scoring.algorithms import Wanted
from scoring.errors import ErrorCode, RequestError
from scoring.layout import Rows, TokenIds
from scoring.model_card import ModelCard
from scoring.request import ScoreRequest
from scoring.tokenization import TextTokenizer
from scoring.work import work_of_each

_EMPTY: TokenIds = np.zeros(0, np.int32)
_BATCH_TOKENS = 2**20

_log = logging.getLogger(__name__)

_ITEM_FIRST_IGNORED = "item_first is ignored: the model is served in delimiter mode"
_ITEM_FIRST_SERIAL = (
    "with item_first there is no query to share: scored serially, not by {}, which this service asks for"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one path takes, and how it cuts work up.

    max_labels, max_items: of one request; max_tokens: over all its sequences, or None. chunk_tokens: what the rows
    of a chunk take at most, as :mod:`scoring.work` counts, unless a single one takes more; chunk_items: how many they
    are at most. advice: what to do about a request that is too large, put behind the message.
    """

    max_labels: int
    max_items: int
    max_tokens: int | None
    chunk_tokens: int
    chunk_items: int
    advice: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive rows of a request; ``first_item`` is the index of the first in the request's items."""

    first_item: int
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A request as token ids. prompt_tokens: the lengths of all N sequences, prefix included, summed."""

    prefix: TokenIds
    chunks: tuple[Chunk, ...]
    label_token_ids: tuple[int, ...]
    total_items: int
    prompt_tokens: int
    warnings: tuple[str, ...]


def prepare(
    request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer, limits: Limits, wanted: Wanted = "auto"
) -> Prepared:
    """Tokenise, check and cut up a request for the model of ``card``. Raises :class:`RequestError`.

    wanted: the algorithm that the deployment asks for; a request that can't be scored by it gets a warning.
    """
    if len(request.items) > limits.max_items:
        raise _too_large(
            f"{len(request.items)} items are more than the {limits.max_items} allowed here", "items", limits
        )
    labels = _label_token_ids(request, card, tokenizer, limits)
    prefix, batches = _lay_out(request, card, tokenizer)
    rows = Rows.join(list(_checked(batches, card, limits)))
    return Prepared(
        prefix=prefix,
        chunks=tuple(_cut_into_chunks(rows, limits)),
        label_token_ids=labels,
        total_items=len(rows),
        prompt_tokens=int(rows.sequence_lengths.sum(dtype=np.int64)),
        warnings=_warnings(request, card, wanted),
    )


def _label_token_ids(
    request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer, limits: Limits
) -> tuple[int, ...]:
    field = "labels" if request.labels is not None else "label_token_ids"
    given: Sequence[str | int] = request.labels or request.label_token_ids or ()
    if len(given) > limits.max_labels:
        message = f"{len(given)} labels are more than the {limits.max_labels} allowed"
        raise RequestError(ErrorCode.TOO_MANY_LABELS, message, param=field)
    labels = tuple(
        label if isinstance(label, int) else _single_token(label, f"labels[{n}]", tokenizer)
        for n, label in enumerate(given)
    )
    _check_range(labels, card, field)
    return labels


def _single_token(label: str, param: str, tokenizer: TextTokenizer) -> int:
    try:
        return tokenizer.single_token(label)
    except RequestError as error:
        raise RequestError(error.code, error.message, param=param) from None


def _lay_out(request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer) -> tuple[TokenIds, Iterator[Rows]]:
    """The shared prefix, and the rows behind it in batches, not yet held against the model."""
    if isinstance(request.query, str):
        texts = [item for item in request.items if isinstance(item, str)]
        return _lay_out_text(request.query, texts, request.options.item_first, card, tokenizer)
    ids = [item for item in request.items if not isinstance(item, str)]
    return _lay_out_ids(request.query, ids, request.options.item_first, card)


def _lay_out_text(
    query: str, items: list[str], item_first: bool, card: ModelCard, tokenizer: TextTokenizer
) -> tuple[TokenIds, Iterator[Rows]]:
    query_ids, rows = tokenizer.iterate_rows(query, items)
    _check_query(query_ids, card)
    if card.delimiter is not None:
        prefix = np.append(query_ids, np.int32(card.delimiter))
        return prefix, _without_delimiter(tokenizer.iterate_apart(items, len(prefix)), card.delimiter)
    if item_first:
        return _EMPTY, tokenizer.iterate_reversed(query, items)
    return query_ids, rows


def _lay_out_ids(
    query: list[int], items: list[list[int]], item_first: bool, card: ModelCard
) -> tuple[TokenIds, Iterator[Rows]]:
    _check_range(query, card, "query")
    query_ids = np.array(query, np.int32)
    _check_query(query_ids, card)
    _check_item_range(items, card)
    if card.delimiter is not None:
        prefix = np.append(query_ids, np.int32(card.delimiter))
        return prefix, _without_delimiter(_pack(items, len(prefix)), card.delimiter)
    if item_first:
        return _EMPTY, _pack(items, 0, suffix=query)
    return query_ids, _pack(items, len(query))


def _pack(items: list[list[int]], prefix_length: int, suffix: Sequence[int] = ()) -> Iterator[Rows]:
    """Items of ids, ``suffix`` put behind each, in bounded batches: a hopeless request is refused after the first."""
    step = max(1, _BATCH_TOKENS // (len(suffix) + 1))
    for start in range(0, len(items), step):
        batch = items[start : start + step]
        lengths = np.fromiter(map(len, batch), np.int32, len(batch)) + np.int32(len(suffix))
        tokens = chain.from_iterable(chain.from_iterable((item, suffix) for item in batch))
        packed = np.fromiter(tokens, np.int32, int(lengths.sum()))
        yield Rows(packed, lengths, np.full(len(batch), prefix_length, np.int32))


def _check_query(query: TokenIds, card: ModelCard) -> None:
    if not len(query):
        raise RequestError(ErrorCode.EMPTY_QUERY, "query has no tokens", param="query")
    if int(query.max()) >= card.vocabulary:
        raise _bad_id(int(query.max()), card, "query")
    if card.delimiter is not None and card.delimiter in query:
        raise _delimiter_found(card.delimiter, "query")


def _check_range(ids: Sequence[int], card: ModelCard, where: str) -> None:
    """Plain integers against the vocabulary, before numpy can overflow on them. The lowest index is named."""
    if ids and not 0 <= min(ids) <= max(ids) < card.vocabulary:
        n = next(n for n, token in enumerate(ids) if not 0 <= token < card.vocabulary)
        raise _bad_id(ids[n], card, f"{where}[{n}]")


def _check_item_range(items: list[list[int]], card: ModelCard) -> None:
    filled = [item for item in items if item]
    if filled and not 0 <= min(map(min, filled)) <= max(map(max, filled)) < card.vocabulary:
        for n, item in enumerate(items):
            _check_range(item, card, f"items[{n}]")


def _without_delimiter(batches: Iterator[Rows], delimiter: int) -> Iterator[Rows]:
    first = 0
    for rows in batches:
        found = np.flatnonzero(rows.tokens == delimiter)
        if len(found):
            raise _delimiter_found(delimiter, f"items[{first + _row_of(rows, int(found[0]))}]")
        yield rows
        first += len(rows)


def _checked(batches: Iterator[Rows], card: ModelCard, limits: Limits) -> Iterator[Rows]:
    """Each batch as it comes, held against vocabulary, context and the limit on tokens: nothing is ever cut short."""
    first = total = 0
    for rows in batches:
        if len(rows.tokens) and int(rows.tokens.max()) >= card.vocabulary:
            place = int(np.argmax(rows.tokens >= card.vocabulary))
            raise _bad_id(int(rows.tokens[place]), card, f"items[{first + _row_of(rows, place)}]")
        lengths = rows.sequence_lengths
        if len(lengths) and int(lengths.min()) == 0:
            where = f"items[{first + int(np.argmin(lengths))}]"
            raise RequestError(ErrorCode.EMPTY_QUERY, f"query and {where} together have no tokens", param=where)
        if len(lengths) and int(lengths.max()) > card.context_length:
            n = int(np.argmax(lengths > card.context_length))
            raise _too_long(f"items[{first + n}]", int(lengths[n]), card)
        total += int(lengths.sum(dtype=np.int64))
        if limits.max_tokens is not None and total > limits.max_tokens:
            message = f"the sequences have more than the {limits.max_tokens} tokens in all that are allowed here"
            raise _too_large(message, "items", limits)
        yield rows
        first += len(rows)


def _row_of(rows: Rows, token: int) -> int:
    """The row that the packed token at this place belongs to."""
    return int(np.searchsorted(np.cumsum(rows.lengths, dtype=np.int64), token, side="right"))


def _cut_into_chunks(rows: Rows, limits: Limits) -> Iterator[Chunk]:
    ends = np.cumsum(work_of_each(rows))
    # 64 bits: a hundred thousand long items have more tokens than an int32 counts.
    own_ends = np.cumsum(rows.lengths, dtype=np.int64)
    start = own_before = 0
    before = 0.0
    while start < len(rows):
        stop = int(np.searchsorted(ends, before + limits.chunk_tokens, side="right"))
        stop = max(start + 1, min(stop, start + limits.chunk_items))
        own_after = int(own_ends[stop - 1])
        # Not Rows.slice, which counts from the first row: long prefixes make as many chunks as there are items.
        tokens = rows.tokens[own_before:own_after]
        yield Chunk(start, Rows(tokens, rows.lengths[start:stop], rows.prefix_ends[start:stop]))
        start, before, own_before = stop, float(ends[stop - 1]), own_after


def _warnings(request: ScoreRequest, card: ModelCard, wanted: Wanted) -> tuple[str, ...]:
    if not request.options.item_first:
        return ()
    if card.delimiter is not None:
        _log.warning(_ITEM_FIRST_IGNORED)
        return (_ITEM_FIRST_IGNORED,)
    return () if wanted in ("auto", "serial") else (_ITEM_FIRST_SERIAL.format(wanted),)


def _bad_id(token: int, card: ModelCard, param: str) -> RequestError:
    if token < 0:
        return RequestError(ErrorCode.NEGATIVE_TOKEN_ID, f"{param}: token ids are not negative", param=param)
    message = f"{param}: a token id is not in the vocabulary, whose ids are 0 to {card.vocabulary - 1}"
    return RequestError(ErrorCode.TOKEN_ID_EXCEEDS_VOCAB, message, param=param)


def _delimiter_found(delimiter: int, param: str) -> RequestError:
    message = f"{param} holds token {delimiter}, which this model's deployment reserves as the delimiter"
    return RequestError(ErrorCode.DELIMITER_IN_INPUT, message, param=param)


def _too_long(param: str, length: int, card: ModelCard) -> RequestError:
    message = f"query and {param} make {length} tokens; the model's context is {card.context_length}"
    return RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param=param)


def _too_large(message: str, param: str, limits: Limits) -> RequestError:
    full = f"{message}; {limits.advice}" if limits.advice else message
    return RequestError(ErrorCode.REQUEST_TOO_LARGE, full, param=param)
