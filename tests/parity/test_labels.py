"""Labels of several tokens and likelihoods, from text to scores, against HuggingFace, computed side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from checkpoints.card import ModelCard
from model.engine import Engine
from scoring.error_codes import RequestError
from scoring.layout import ChunkWork, GroupWork, Head, ScoredChunk
from scoring.prepare import PreparedRequest, prepare
from scoring.request import parse_likelihood_request, parse_score_request
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model import engines, references
from tests.model.checkpoints import EVERY, tensors, write
from tests.model.continuations.cases import CLEAR_LEAD
from tests.model.continuations.test_continuations import BUGS
from tests.model.references import SEED, huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS, OF_PROCESSORS
from tests.scoring.generous_limits import GENEROUS
from tests.scoring.tokenizing import tokenizers_under_test as under_test

pytestmark = pytest.mark.parity

TOKENIZERS = {"no beginning token": under_test.qwen2, "a beginning token": under_test.llama3}
MOST_TOKENS = 30
FRAGMENTS = st.lists(st.sampled_from(under_test.FRAGMENTS), max_size=12).map("".join)
ITEMS = st.lists(st.one_of(st.just(""), FRAGMENTS, FRAGMENTS.map(lambda text: 12 * text)), min_size=1, max_size=3)
LABELS = st.lists(FRAGMENTS.filter(bool), min_size=1, max_size=20, unique=True)
QUERY = st.one_of(FRAGMENTS.filter(bool), FRAGMENTS.filter(bool).map(lambda text: 30 * text))
# The query merges with the first item, and the first label with the query, behind the second item, and with the third.
MERGING: dict[str, Any] = {
    "query": "the answer th",
    "items": ["e", "", " is th"],
    "labels": ["e", " answer", "'s", "don't is a"],
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a family, as wide as the largest vocabulary of a tokenizer, and its engine."""

    directory: Path
    engine: Engine


Load = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    @cache
    def loaded(family: str) -> Checkpoint:
        widest = max(tokenizer().vocabulary for tokenizer in TOKENIZERS.values())
        config = replace(EVERY[family], vocabulary=widest + 3)
        directory = write(tmp_path_factory.mktemp("model"), config, tensors(config, SEED))
        return Checkpoint(directory, engines.load(directory, "float32", step_tokens=64))

    return loaded


FEW = ("tied", "gemma3", "qwen35")
"""Families whose labels are always compared; `make matrix` compares those of the others."""
each_family = pytest.mark.parametrize("family", references.FAMILIES)
some_families = pytest.mark.parametrize(
    "family",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.matrix) for name in references.FAMILIES],
)
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS)


@each_family
def test_stored_references_of_labels_agree_with_huggingface(family: str, tmp_path: Path) -> None:
    case, stored = references.read_labels(family)
    directory = write(tmp_path, EVERY[family], tensors(EVERY[family], SEED))
    logprobs, lead = huggingface.targets(directory, case.sequences())
    np.testing.assert_allclose(logprobs, stored.logprobs, rtol=0, atol=OF_PROCESSORS)
    np.testing.assert_allclose(lead, stored.lead, rtol=0, atol=OF_PROCESSORS)


@some_families
@each_tokenizer
@settings(max_examples=15)
@given(query=QUERY, items=ITEMS, labels=LABELS)
@example(**MERGING)
def test_labels_of_several_tokens_are_huggingfaces(
    family: str, tokenizer: str, load: Load, query: str, items: list[str], labels: list[str]
) -> None:
    encoding = TOKENIZERS[tokenizer]()
    body = {"query": query, "items": items, "labels": labels, "label_scoring": "sequence"}
    plain = [_split(encoding, query + item, label) for item in items for label in labels]
    assume(all(len(before) and 0 < len(targets) <= MOST_TOKENS for before, targets in plain))
    request = prepare(parse_score_request(body), _card(encoding), encoding, GENEROUS)
    _assert_same(load(family), request, plain)


@some_families
@each_tokenizer
@settings(max_examples=15)
@given(query=st.one_of(st.just(""), QUERY), items=ITEMS)
@example(query="the answer th", items=["e", "", "e is", "'s"])
def test_likelihoods_are_huggingfaces(family: str, tokenizer: str, load: Load, query: str, items: list[str]) -> None:
    encoding = TOKENIZERS[tokenizer]()
    try:
        request = prepare(
            parse_likelihood_request({"query": query, "items": items}), _card(encoding), encoding, GENEROUS
        )
    except RequestError:
        assume(False)
    plain = [_split(encoding, query, item) for item in items]
    _assert_same(load(family), request, plain)


def test_the_example_merges_at_both_boundaries() -> None:
    for tokenizer in TOKENIZERS.values():
        encoding = tokenizer()
        request = prepare(
            parse_score_request(MERGING | {"label_scoring": "sequence"}), _card(encoding), encoding, GENEROUS
        )
        (chunk,) = request.chunks
        assert chunk.continuations is not None
        labels = len(MERGING["labels"])
        assert chunk.rows.prefix_ends[0] < len(encoding.encode(MERGING["query"])), "the item merges with the query"
        kept = chunk.continuations.kept.reshape(-1, labels)
        assert kept[1, 0] < chunk.rows.sequence_lengths[1], "a label behind an empty item merges with the query"
        assert kept[2, 0] < chunk.rows.sequence_lengths[2], "a label merges with the item"


@some_families
def test_a_label_is_greedy_if_each_of_its_tokens_is_the_most_probable_one(family: str, load: Load) -> None:
    checkpoint, random = load(family), np.random.RandomState(1)
    query, items = random.randint(0, 90, 70), [random.randint(0, 90, length) for length in (0, 20, 130)]
    greedy = [huggingface.greedy(checkpoint.directory, np.concatenate([query, item]), 12) for item in items]
    # Each item has the labels of all items, whole, short, and with another last token.
    labels = [label for best in greedy for label in (best, best[:1], best[:5], np.append(best[:4], (best[4] + 1) % 90))]
    body = {
        "query": query.tolist(),
        "items": [item.tolist() for item in items],
        "label_token_sequences": [label.tolist() for label in labels],
        "label_scoring": "sequence",
    }
    tokenizer = under_test.qwen2()
    request = prepare(parse_score_request(body), _card(tokenizer), tokenizer, GENEROUS)
    plain = [(np.concatenate([query, item]).astype(np.int32), label) for item in items for label in labels]
    is_greedy = _assert_same(checkpoint, request, plain).reshape(len(items), len(items), 4)
    for n in range(len(items)):
        assert is_greedy[n, n].tolist() == [True, True, True, False]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_differs_from_huggingface(
    bug: Callable[[pytest.MonkeyPatch], None], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = under_test.qwen2()
    body = {"query": [5, 6, 7], "items": [[8, 9], []], "label_token_sequences": [[1, 4, 2], [3, 7]]}
    request = prepare(parse_score_request(body | {"label_scoring": "sequence"}), _card(tokenizer), tokenizer, GENEROUS)
    plain = [
        (np.array([5, 6, 7, *item], np.int32), np.array(label, np.int32))
        for item in ([8, 9], [])
        for label in ([1, 4, 2], [3, 7])
    ]
    _assert_same(load("tied"), request, plain)
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        _assert_same(load("tied"), request, plain)


def _card(tokenizer: TextTokenizer) -> ModelCard:
    return ModelCard("small", 1_024, tokenizer.vocabulary, tokenizer.fingerprint)


def _split(tokenizer: TextTokenizer, before: str, behind: str) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of both together, split where they begin to differ from those of the first alone."""
    base, whole = tokenizer.encode(before), tokenizer.encode(before + behind)
    shared = next((n for n, (one, other) in enumerate(zip(base, whole, strict=False)) if one != other), len(base))
    shared = min(shared, len(whole))
    return np.array(whole[:shared], np.int32), np.array(whole[shared:], np.int32)


def _assert_same(checkpoint: Checkpoint, request: PreparedRequest, plain: Sequence[tuple[Any, Any]]) -> np.ndarray:
    """Compare the sums and the greediness of all labels, and return which are greedy."""
    chunks = tuple(
        ChunkWork(n, chunk.rows, (), Head.LOGPROBS, chunk.continuations) for n, chunk in enumerate(request.chunks)
    )
    found: list[ScoredChunk] = sorted(
        checkpoint.engine.score([GroupWork("all", request.prefix, chunks)], lambda: None), key=lambda one: one.id
    )
    sums = np.concatenate([_logprobs(one).reshape(-1) for one in found])
    greedy = np.concatenate([one.greedy for one in found if one.greedy is not None])
    for one_sum, one_greedy, sequence in zip(sums, greedy, plain, strict=True):
        if not len(sequence[1]):
            assert one_sum == 0.0
            continue
        logprobs, lead = huggingface.targets(checkpoint.directory, [sequence])
        assert abs(one_sum - logprobs.astype(np.float64).sum()) <= FLOAT32_LOGPROBS * len(logprobs)
        if (np.abs(lead) > CLEAR_LEAD).all():
            assert one_greedy == (lead > 0).all()
    return greedy


def _logprobs(scored: ScoredChunk) -> np.ndarray:
    return engines.logprobs_of(scored.scores)
