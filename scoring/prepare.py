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
from typing import Any

import numpy as np

from checkpoints.card import ModelCard
from scoring.chunk import Chunk, Cuts
from scoring.encoded_query import encode_query, row_of
from scoring.error_codes import ErrorCode, RequestError
from scoring.label_sequences import targets_of
from scoring.label_tokens import check_number_of_labels, find_label_token_ids
from scoring.labels.classes import refuse_other_work
from scoring.labels.item_labels import ItemLabels
from scoring.layout import Continuations, Rows, TokenIds
from scoring.limits import Limits
from scoring.planning.algorithms import AlgorithmSetting
from scoring.request import ScoreRequest
from scoring.sources import equal_items
from scoring.templates.asked import check_fit
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted
from scoring.vocabulary import bad_id
from scoring.work import work_of_each_row

Part = tuple[Rows, Continuations | None]
"""Rows, and what stands behind them if their labels have any number of tokens."""

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

    @property
    def sequence_lengths(self) -> TokenIds:
        """int32 [N]: how many tokens the sequence of each item has, prefix included."""
        return np.concatenate([np.zeros(0, np.int32), *(chunk.rows.sequence_lengths for chunk in self.chunks)])


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
        if card.classes is not None:
            is_decision, of_tokens = request.decision is not None, request.options.is_of_vocabulary
            refuse_other_work(card.classes, is_decision=is_decision, is_of_tokens=of_tokens)
        check_number_of_labels(request, limits)
        limits.check_query_and_labels(request.query, request.labels or (), request.item_labels or ())
        if request.template is not None:
            check_fit(request.template, tokenizer, has_classes=card.classes is not None)
        if request.wording is not None:
            of_client = "query_template" if request.template is None else "instruction"
            limits.check_wording(request.wording.sent_characters, of_client)
        limits.check_item_texts(request.items)
        self.label_token_ids, self.item_labels = find_label_token_ids(request, card, tokenizer, limits)
        self._query = encode_query(request, card, tokenizer, stop_if_unwanted)
        self.prefix = self._query.prefix
        self._targets = targets_of(request, card, tokenizer, limits, self._query, stop_if_unwanted)
        if self._targets is not None:
            self.label_token_ids = _label_columns(request, self._targets.columns)
        self.repeated_characters = self._query.repeated_characters  # of the query, with each item
        self.warnings = _warnings(request, card, wanted)
        self.is_text = isinstance(request.query, str)  # so the items must be texts, too
        self.total_items = 0  # so far
        self.prompt_tokens = 0  # so far
        self._stored_tokens = 0  # so far
        self._card = card
        self._limits = limits
        self._stop_if_unwanted = stop_if_unwanted
        self._shows_targets = request.options.needs_targets
        self._rest: Part = (Rows.join([]), None)  # rows that are not in a chunk yet

    def add(self, items: list[str] | list[list[int]]) -> list[Chunk]:
        """Add items, which must be of the query's kind, and return the chunks that are now complete."""
        self._limits.check_items(self.total_items + len(items))
        self._limits.check_item_texts(items, self.total_items)
        self._check_price_of_the_query(len(items))
        chunks: list[Chunk] = []
        for part in self._checked(self._query.encode_items(items, self.total_items), items):
            chunks += self._split(_joined(self._rest, part), last=False)
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
        query, limits, targets = self._query, self._limits, self._targets
        of_labels = 0 if targets is None else targets.fewest_tokens
        limits.check_tokens(
            self.prompt_tokens + more_items * (query.tokens + of_labels),
            self._stored_tokens + more_items * (query.stored_tokens + of_labels),
        )
        limits.check_repeated_characters(query.repeated_characters, self.total_items + more_items)

    def _checked(self, batches: Iterator[Rows], items: Sequence[Any]) -> Iterator[Part]:
        """Check each batch against the vocabulary, the context length and the limits on tokens, and count it.

        items: of all batches.
        """
        card = self._card
        self._stop_if_unwanted()
        done = 0  # items
        for rows in batches:
            first = self.total_items
            if len(rows.tokens) and int(rows.tokens.max()) >= card.vocabulary:
                place = int(np.argmax(rows.tokens >= card.vocabulary))
                raise bad_id(int(rows.tokens[place]), card, f"items[{first + row_of(rows, place)}]")
            lengths = rows.sequence_lengths
            if len(lengths) and int(lengths.min()) == 0:
                where = f"items[{first + int(np.argmin(lengths))}]"
                raise RequestError(ErrorCode.EMPTY_QUERY, f"query and {where} together have no tokens", param=where)
            self._check_context(lengths, first, "query and {}")
            self._count(int(lengths.sum(dtype=np.int64)), len(rows.tokens))
            yield from self._with_targets(rows, items[done : done + len(rows)])
            done += len(rows)
            self._stop_if_unwanted()

    def _with_targets(self, rows: Rows, items: Sequence[Any]) -> Iterator[Part]:
        """Yield the rows with their continuations, if there are any, and count the items."""
        targets, first = self._targets, self.total_items
        if targets is None:
            self.total_items += len(rows)
            yield rows, None
            return
        for start in range(0, len(rows), targets.most_rows):
            stop = min(start + targets.most_rows, len(rows))
            kept, continuations = targets.behind(rows.part(start, stop), items[start:stop], first + start)
            if targets.adds_tokens:
                longest = continuations.sequence_lengths.reshape(stop - start, -1).max(axis=1)
                self._check_context(longest, first + start, "query, {} and the longest label")
                self._count(len(continuations.tokens), len(continuations.tokens))
            self.total_items += stop - start
            yield kept, continuations

    def _check_context(self, lengths: TokenIds, first: int, what: str) -> None:
        """Refuse sequences that are longer than the context. what: names them, given the name of the item."""
        if len(lengths) and int(lengths.max()) > self._card.context_length:
            n = int(np.argmax(lengths > self._card.context_length))
            where = f"items[{first + n}]"
            message = (
                f"{what.format(where)} make {lengths[n]} tokens; the model's context is {self._card.context_length}"
            )
            raise RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, param=where)

    def _count(self, tokens: int, stored_tokens: int) -> None:
        self.prompt_tokens += tokens
        self._stored_tokens += stored_tokens
        self._limits.check_tokens(self.prompt_tokens, self._stored_tokens)

    def _split(self, part: Part, *, last: bool) -> list[Chunk]:
        """Split rows into chunks. Unless they are the last, keep those whose chunk may still grow."""
        rows, continuations = part
        found: list[Chunk] = []
        first_item = self.total_items - len(rows)
        work = work_of_each_row(rows, continuations, len(self.prefix))
        cuts = Cuts.of(rows, continuations)
        start = 0
        while start < len(rows):
            # Summed from the chunk's first row on, so that its end does not depend on how the rows arrived.
            ends = np.cumsum(work[start : start + self._limits.chunk_items])
            stop = start + max(1, int(np.searchsorted(ends, self._limits.chunk_tokens, side="right")))
            if not last and stop == len(rows) and stop - start < self._limits.chunk_items:
                break
            of_chunk = cuts.part(start, stop)
            # Where an answer shows more of an item than its scores, each item is computed.
            sources = None if self._shows_targets else equal_items(*of_chunk)
            computed = work[start:stop] if sources is None else work[start:stop][sources.computed]
            found.append(Chunk(first_item + start, *of_chunk, work=round(float(computed.sum())), sources=sources))
            start = stop
        self._rest = cuts.part(start, len(rows))
        return found


def _label_columns(request: ScoreRequest, columns: int) -> tuple[int, ...]:
    """Return what stands for labels of any number of tokens where others have their ids: the place of the first such.

    So there are as many as labels, and a label that is named twice can be recognised.
    """
    first: dict[object, int] = {}
    labels = request.labels or request.label_token_sequences or range(columns)
    return tuple(first.setdefault(label, n) for n, label in enumerate(labels))


def _joined(rest: Part, part: Part) -> Part:
    """Return the rows of both, with their continuations if the second part has any. The first may have no rows."""
    continuations = part[1] if rest[1] is None or part[1] is None else Continuations.join([rest[1], part[1]])
    return Rows.join([rest[0], part[0]]), continuations


def _warnings(request: ScoreRequest, card: ModelCard, wanted: AlgorithmSetting) -> tuple[str, ...]:
    if request.decision is not None:
        return request.decision.warnings
    if not request.options.item_first:
        return ()
    if card.delimiter is not None:
        _log.warning(_ITEM_FIRST_IGNORED)
        return (_ITEM_FIRST_IGNORED,)
    return () if wanted in ("auto", "serial") else (_ITEM_FIRST_SERIAL.format(wanted),)
