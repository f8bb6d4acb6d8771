"""From text to token ids: concatenate, then tokenise, sharing the query's tokens where the two agree.

What is scored for item ``n`` is ``encode(query + item_n)``. The prefix it shares is the longest common token prefix of
that and of ``encode(query)``: it depends on this pair alone, and needs no care at the boundary.

Encoding a long query again with every item is slow, so :meth:`TextTokenizer.encode_rows` encodes it once where it can
be cut (:mod:`scoring.query_cut` says when and proves it), and re-encodes only the tail behind the cut with each item.
:meth:`TextTokenizer.encode_rows_plainly` is the same thing without that, and the tests hold one against the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from checkpoints.files import ModelFilesError, require_directory
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import Rows, TokenIds
from scoring.query_cut import QueryCutter

_BATCH_ROWS = 4_096
_BATCH_CHARACTERS = 2**21
"""One call into the tokenizer takes this much, so that memory is bounded and a hopeless request is refused early."""


class TextTokenizer:
    """A model's tokenizer. Never truncates and never pads; safe to use from several threads.

    backend: copied, because transformers keeps truncation and padding as mutable state in its own.
    special_tokens_split: special tokens written out in a text are ordinary text (transformers'
    ``split_special_tokens``).
    """

    def __init__(self, backend: Tokenizer, *, special_tokens_split: bool = False) -> None:
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = special_tokens_split
        # A large vocabulary makes this a hundred megabytes of objects, so nothing of it is kept.
        definition: dict[str, Any] = json.loads(self._backend.to_str())
        self._cutter = QueryCutter.for_tokenizer(definition)
        self._is_byte_level = (definition["decoder"] or {}).get("type") == "ByteLevel"
        self._marks_beginnings = _marks_beginnings(definition["normalizer"]) or _marks_beginnings(
            definition["pre_tokenizer"]
        )
        self.vocabulary = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the highest token id: ``len(tokenizer)``, unless the added tokens leave holes."""
        self.base_vocabulary = max(self._backend.get_vocab(with_added_tokens=False).values(), default=-1) + 1
        """The same of the vocabulary proper, added tokens excluded."""
        self.fingerprint = _fingerprint({**definition, "encode_special_tokens": special_tokens_split})
        """SHA-256 over all that decides how text is encoded: equal fingerprints, equal tokens."""

    @classmethod
    def load(cls, directory: Path | str) -> TextTokenizer:
        """The tokenizer in a model directory, as transformers loads it. Raises :class:`ModelFilesError`."""
        directory = Path(directory)
        require_directory(directory)
        _require_tokenizer_files(directory)
        # Without torch, which is not wanted here, transformers says on import that models will not be available.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers import AutoTokenizer

        try:
            # Told that code in a checkpoint is not trusted, it refuses; else it would ask at the terminal.
            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises anything from OSError to a bare Exception out of Rust
            reason = " ".join(str(error).split())
            if "trust_remote_code" in reason:
                raise ModelFilesError(
                    f"the tokenizer of {directory} is code in the checkpoint (auto_map in tokenizer_config.json), "
                    "which is not run here: save it as a tokenizer.json"
                ) from error
            raise ModelFilesError(
                f"no tokenizer can be loaded from {_tokenizer_file(directory)}: {reason}; get the file again, or check "
                "that it belongs to the model"
            ) from error
        if not tokenizer.is_fast:
            raise ModelFilesError(
                f"the tokenizer of {directory} ({type(tokenizer).__name__}) has no fast form, which is the only one "
                "served: tokenizer_class in tokenizer_config.json must name one that reads tokenizer.json"
            )
        return cls(tokenizer.backend_tokenizer, special_tokens_split=bool(tokenizer.split_special_tokens))

    def added_tokens_from(self, width: int) -> list[str]:
        """The added tokens with ids of ``width`` and more, in the order of their ids."""
        added = self._backend.get_added_tokens_decoder()
        return [added[token].content for token in sorted(added) if token >= width]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with the special tokens the tokenizer adds to a plain text unless told otherwise."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as text; a token that is no whole characters, in the vocabulary's own spelling."""
        if not self._is_byte_level:
            return [self._spelling(token) for token in ids]
        texts = self._backend.decode_batch([[token] for token in ids], skip_special_tokens=False)
        return [self._spelling(token) if "\ufffd" in text else text for token, text in zip(ids, texts, strict=True)]

    def single_token(self, text: str) -> int:
        """The one token that ``text`` is where it follows other text, as a label does.

        For byte-level tokenizers that is ``encode(text)``. SentencePiece's put a marker before a text, as if a space
        stood there, and so ``encode("Yes")`` is ``▁Yes``: the token for ``" Yes"`` behind other text. Here, what is
        written is what follows: ``" Yes"`` is ``▁Yes`` and ``"Yes"`` is ``Yes``, the token that continues a word or
        follows a line feed, and a label means the same with every family of tokenizers.

        Raises :class:`RequestError` ``label_not_single_token`` with its pieces.
        """
        ids = self._encode_behind_text(text)
        if len(ids) != 1:
            message = f"label {text!r} is {len(ids)} tokens, not one: {self.pieces(ids)}"
            raise RequestError(ErrorCode.LABEL_NOT_SINGLE_TOKEN, message)
        return ids[0]

    def _encode_behind_text(self, text: str) -> list[int]:
        """Token ids of ``text``, without what the tokenizer puts at the beginning of a text."""
        if self._marks_beginnings:
            # A line feed: SentencePiece has no longer pieces with one, so nothing grows together with it.
            before = self.encode("\n", add_special_tokens=False)
            ids = self.encode("\n" + text, add_special_tokens=False)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self.encode(text, add_special_tokens=False)

    def encode_rows(self, query: str, items: Sequence[str]) -> tuple[TokenIds, Rows]:
        """``encode(query)``, and for each item what ``encode(query + item)`` adds to the prefix they share."""
        ids, batches = self.iterate_rows(query, items)
        return ids, Rows.join(list(batches))

    def encode_rows_plainly(self, query: str, items: Sequence[str]) -> tuple[TokenIds, Rows]:
        """:meth:`encode_rows` without the short cut: the whole query is encoded again with every item."""
        ids = np.array(self.encode(query), np.int32)
        return ids, Rows.join(list(self._extend(ids, 0, query, items, add_special_tokens=True)))

    def iterate_rows(self, query: str, items: Sequence[str]) -> tuple[TokenIds, Iterator[Rows]]:
        """:meth:`encode_rows`, a bounded batch of rows at a time and lazily, so that a caller may stop early."""
        ids, extend = self.extender(query)
        return ids, extend(items)

    def extender(self, query: str) -> tuple[TokenIds, Callable[[Sequence[str]], Iterator[Rows]]]:
        """``encode(query)``, and what makes rows of items as :meth:`iterate_rows` does, for items that come bit by bit:
        the query is encoded here, once.
        """
        cut = self._cutter.cut(query)
        if cut is None:
            ids = np.array(self.encode(query), np.int32)
            return ids, lambda items: self._extend(ids, 0, query, items, add_special_tokens=True)
        head = self._cutter.leading_ids + self.encode(query[:cut], add_special_tokens=False)
        tail = self.encode(query[cut:], add_special_tokens=False)
        ids = np.array(head + tail, np.int32)
        return ids, lambda items: self._extend(ids, len(head), query[cut:], items, add_special_tokens=False)

    def iterate_apart(self, items: Sequence[str], prefix_length: int) -> Iterator[Rows]:
        """Items encoded by themselves, without special tokens, each a row behind a whole prefix of that length."""
        for texts in _batches(items, 0):
            tokens, lengths = self._encode_batch(texts, add_special_tokens=False)
            yield Rows(tokens, lengths, np.full(len(texts), prefix_length, np.int32))

    def iterate_reversed(self, query: str, items: Sequence[str]) -> Iterator[Rows]:
        """``encode(item + query)`` for each item: rows without a prefix."""
        for texts in _batches(items, len(query)):
            tokens, lengths = self._encode_batch([item + query for item in texts], add_special_tokens=True)
            yield Rows(tokens, lengths, np.zeros(len(texts), np.int32))

    def _extend(
        self, ids: TokenIds, stable: int, tail: str, items: Sequence[str], *, add_special_tokens: bool
    ) -> Iterator[Rows]:
        """Rows of ``encode(tail + item)`` behind ``ids[:stable]``, cut where they leave ``ids[stable:]``."""
        for texts in _batches(items, len(tail)):
            tokens, lengths = self._encode_batch([tail + item for item in texts], add_special_tokens=add_special_tokens)
            shared = _common_prefixes(tokens, lengths, ids[stable:])
            yield Rows(_drop_leading(tokens, lengths, shared), lengths - shared, shared + np.int32(stable))

    def _encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> tuple[TokenIds, TokenIds]:
        """All tokens end to end, int32 [T], and the length of each text in tokens, int32 [N]."""
        encoded = [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]
        lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
        return np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum())), lengths

    def _spelling(self, token: int) -> str:
        return self._backend.id_to_token(token) or ""


def _tokenizer_file(directory: Path) -> Path:
    """What a complaint should name: the file that is read where it is there."""
    path = directory / "tokenizer.json"
    return path if path.exists() else directory


def _require_tokenizer_files(directory: Path) -> None:
    """Raise :class:`ModelFilesError` where a tokenizer is missing, or is only there in a form that is not served."""
    if (directory / "tokenizer.json").exists() or all((directory / n).exists() for n in ("vocab.json", "merges.txt")):
        return
    found = [name for name in ("tokenizer.model", "tekken.json", "vocab.json") if (directory / name).exists()]
    if not found:
        raise ModelFilesError(f"{directory} holds no tokenizer.json: add the model's tokenizer files to it")
    raise ModelFilesError(
        f"{directory} holds {' and '.join(found)} but no tokenizer.json, which is the form that is served: add the "
        "model's tokenizer.json, or have transformers write one (AutoTokenizer, save_pretrained)"
    )


def _marks_beginnings(step: Mapping[str, Any] | None) -> bool:
    """Whether a step of the pipeline puts something before a text, as if a space stood there."""
    match step:
        case {"type": "Prepend"} | {"type": "Metaspace", "prepend_scheme": "always" | "first"}:
            return True
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return True
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "pretokenizers": steps}:
            return any(map(_marks_beginnings, steps))
    return False


def _fingerprint(definition: dict[str, Any]) -> str:
    canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _batches(texts: Sequence[str], overhead: int) -> Iterator[Sequence[str]]:
    """Runs of texts, each at most so many, and so many characters with ``overhead`` added to each; at least one."""
    start = characters = 0
    for n, text in enumerate(texts):
        size = len(text) + overhead
        if n > start and (n - start == _BATCH_ROWS or characters + size > _BATCH_CHARACTERS):
            yield texts[start:n]
            start, characters = n, 0
        characters += size
    if start < len(texts):
        yield texts[start:]


def _common_prefixes(tokens: TokenIds, lengths: TokenIds, reference: TokenIds) -> TokenIds:
    """How many leading tokens each packed row shares with ``reference``, int32 [N]."""
    starts = np.cumsum(lengths) - lengths
    shared = np.zeros(len(lengths), np.int32)
    alive = np.arange(len(lengths))
    for offset, token in enumerate(reference):
        alive = alive[lengths[alive] > offset]
        alive = alive[tokens[starts[alive] + offset] == token]
        if not len(alive):
            break
        shared[alive] += 1
    return shared


def _drop_leading(tokens: TokenIds, lengths: TokenIds, count: TokenIds) -> TokenIds:
    """The packed rows without the first ``count[n]`` tokens of each."""
    starts = np.cumsum(lengths) - lengths
    offsets = np.arange(len(tokens), dtype=np.int64) - np.repeat(starts, lengths)
    return tokens[offsets >= np.repeat(count, lengths)]
