"""Turn the query of a request into tokens, with the encoder of the items behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from checkpoints.card import ModelCard
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.layout import Rows, TokenIds
from scoring.request import PromptsRead, ScoreRequest
from scoring.templates.encoding import Prompt
from scoring.templates.wording import Wording
from scoring.tokenizing.control_tokens import ControlTokenError
from scoring.tokenizing.encoded import EncodedQuery, checked_vocabulary
from scoring.tokenizing.row_encoder import QueryTooLongError, check_query_length
from scoring.tokenizing.text_labels import Window
from scoring.tokenizing.tokenization import TextTokenizer
from scoring.vocabulary import bad_id, check_range

_EMPTY: TokenIds = np.zeros(0, np.int32)
_BATCH_TOKENS = 2**20


def encode_query(
    request: ScoreRequest, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> EncodedQuery:
    """Encode the query of a request. Raises :class:`RequestError`."""
    item_first = request.options.item_first and card.delimiter is None
    if request.read is not None:
        return _behind_nothing(request.read, card, tokenizer)
    try:
        if request.decision is not None:
            return request.decision.prompts.encode(card, tokenizer, stop_if_unwanted)
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


def _behind_nothing(read: PromptsRead, card: ModelCard, tokenizer: TextTokenizer) -> EncodedQuery:
    """Return what encodes whole prompts, which stand behind no query."""

    def encode_items(items: Sequence[Any], first: int) -> Iterator[Rows]:
        if items and isinstance(items[0], str):
            batches = tokenizer.encode_items_first("", items)
        else:
            _check_item_range(items, card, first)
            batches = _pack(items, 0)
        for rows in batches if card.delimiter is None else _without_delimiter(batches, card.delimiter, first):
            for n in np.flatnonzero((rows.lengths == 0) | (rows.lengths + read.next > card.context_length)).tolist():
                raise _unfit_prompt(int(rows.lengths[n]), f"items[{first + n}]", read, card)
            yield rows
            first += len(rows)

    return EncodedQuery(_EMPTY, encode_items, tokens=0)


def _unfit_prompt(length: int, where: str, read: PromptsRead, card: ModelCard) -> RequestError:
    """Return the error of a prompt that has no tokens, or too many."""
    if not length:
        return RequestError(ErrorCode.EMPTY_QUERY, f"{where} has no tokens", param=where)
    and_one_more = " and is to be continued by one" if read.next else ""
    message = f"{where} has {length} tokens{and_one_more}; the model's context is {card.context_length}"
    return RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param=where)


def _encode_text_query(
    query: str, item_first: bool, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> EncodedQuery:
    encoder = tokenizer.row_encoder(query, longest=card.context_length, stop_if_unwanted=stop_if_unwanted)
    prefix = _checked_prefix(encoder.query, card)
    if card.delimiter is not None:
        delimiter = card.delimiter
        return EncodedQuery(
            prefix,
            lambda items, first: _without_delimiter(tokenizer.encode_items_alone(items, len(prefix)), delimiter, first),
            tokens=len(prefix),
            label_place=lambda item: Window(item, add_special_tokens=False),
        )
    if item_first:
        return EncodedQuery(
            _EMPTY,
            lambda items, _: tokenizer.encode_items_first(query, items),
            tokens=len(prefix),
            stored_tokens=len(prefix),
            repeated_characters=len(query),
            label_place=lambda item: Window(item + query, add_special_tokens=True),
        )
    return EncodedQuery(
        prefix,
        lambda items, _: encoder(items),
        tokens=len(prefix),
        repeated_characters=encoder.repeated_characters,
        label_place=lambda item: Window(encoder.tail + item, encoder.add_special_tokens),
    )


def _encode_prompt(
    query: str, wording: Wording, card: ModelCard, tokenizer: TextTokenizer, stop_if_unwanted: Callable[[], None]
) -> EncodedQuery:
    """Encode a query in the wording of a template. What stands behind the items is stored in each row."""
    if not query:
        raise RequestError(ErrorCode.EMPTY_QUERY, "query has no tokens", param="query")
    delimiter = card.delimiter
    prompt = Prompt(wording, query, tokenizer, delimiter)
    try:
        encoder = prompt.row_encoder(card.context_length, stop_if_unwanted)
    except ControlTokenError as error:
        where = "instruction" if error.token in wording.instruction else "query"
        raise invalid(f"{where}: {error}", where) from None
    prefix, behind = encoder.query, len(encoder.suffix)
    checked_vocabulary(prefix, card, "query")
    if delimiter is not None and np.count_nonzero(prefix == delimiter) > 1:
        raise delimiter_found(delimiter, "query")

    def encode_items(items: Sequence[str], first: int) -> Iterator[Rows]:
        rows = _naming_items(encoder(items), first)
        return rows if delimiter is None else _without_delimiter(rows, delimiter, first)

    return EncodedQuery(
        prefix,
        encode_items,
        tokens=len(prefix) + behind,
        stored_tokens=behind,
        repeated_characters=encoder.repeated_characters,
        label_place=prompt.label_place(encoder),
    )


def _encode_id_query(query: list[int], item_first: bool, card: ModelCard) -> EncodedQuery:
    check_range(query, card, "query")
    prefix = _checked_prefix(np.array(query, np.int32), card)

    def encode_items(items: Sequence[list[int]], first: int) -> Iterator[Rows]:
        _check_item_range(items, card, first)
        if item_first:
            return _pack(items, 0, suffix=query)
        packed = _pack(items, len(prefix))
        return packed if card.delimiter is None else _without_delimiter(packed, card.delimiter, first)

    if item_first:
        return EncodedQuery(_EMPTY, encode_items, tokens=len(prefix), stored_tokens=len(prefix))
    return EncodedQuery(prefix, encode_items, tokens=len(prefix))


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
        raise delimiter_found(card.delimiter, "query")
    prefix = query if card.delimiter is None else np.append(query, np.int32(card.delimiter))
    check_query_length(len(prefix), card.context_length)
    return prefix


def _check_item_range(items: Sequence[list[int]], card: ModelCard, first: int) -> None:
    filled = [item for item in items if item]
    if filled and not 0 <= min(map(min, filled)) <= max(map(max, filled)) < card.vocabulary:
        for n, item in enumerate(items, first):
            check_range(item, card, f"items[{n}]")


def _naming_items(batches: Iterator[Rows], first: int) -> Iterator[Rows]:
    """Name the item in the error if a control token can't be kept out of it."""
    try:
        yield from batches
    except ControlTokenError as error:
        where = f"items[{first + (error.item or 0)}]"
        raise invalid(f"{where}: {error}", where) from None


def _without_delimiter(batches: Iterator[Rows], delimiter: int, first: int) -> Iterator[Rows]:
    for rows in batches:
        found = np.flatnonzero(rows.tokens == delimiter)
        if len(found):
            raise delimiter_found(delimiter, f"items[{first + row_of(rows, int(found[0]))}]")
        yield rows
        first += len(rows)


def row_of(rows: Rows, token: int) -> int:
    """Return the row that the packed token at index ``token`` belongs to."""
    return int(np.searchsorted(np.cumsum(rows.lengths, dtype=np.int64), token, side="right"))


def delimiter_found(delimiter: int, param: str) -> RequestError:
    message = f"{param} holds token {delimiter}, which this model's deployment reserves as the delimiter"
    return RequestError(ErrorCode.DELIMITER_IN_INPUT, message, param=param)
