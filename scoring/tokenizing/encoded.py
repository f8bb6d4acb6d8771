"""A query as tokens, with what turns the items behind it into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoints.card import ModelCard
from scoring.layout import Rows, TokenIds
from scoring.tokenizing.text_labels import LabelPlace
from scoring.vocabulary import bad_id

ItemEncoder = Callable[[Sequence[Any], int], Iterator[Rows]]
"""Turns items of the query's kind into rows, in batches. The number is the index of the first item in the request."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQuery:
    """An encoded query, and what it takes with each item."""

    prefix: TokenIds
    encode_items: ItemEncoder  # the rows are not checked yet
    tokens: int  # of the query in each sequence
    stored_tokens: int = 0  # of the query in each row: all of them if there is no prefix that the items share
    repeated_characters: int = 0  # of the query that are encoded again with each item
    label_place: LabelPlace | None = None  # where labels of any number of tokens stand; None behind token ids


def checked_vocabulary(prefix: TokenIds, card: ModelCard, param: str) -> TokenIds:
    """Return the tokens that rows share. Raises RequestError for one that is not in the vocabulary."""
    if len(prefix) and int(prefix.max()) >= card.vocabulary:
        raise bad_id(int(prefix.max()), card, param)
    return prefix
