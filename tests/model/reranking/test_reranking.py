"""Rankings are those of the rerankers' publishers, by stored references; tests/parity computes them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scoring.templates.known import KnownTemplates
from tests.model.reranking.ranking import Ranking
from tests.model.reranking.rerankers import (
    INSTRUCTION,
    RERANKERS,
    read_reference,
    write_as_classifier,
    write_checkpoint,
)

TOLERANCE = 1e-4


def assert_same_ranking(found: np.ndarray, reference: np.ndarray) -> None:
    assert np.abs(found - reference).max() <= TOLERANCE
    np.testing.assert_array_equal(np.argsort(-found, axis=1), np.argsort(-reference, axis=1))


@pytest.mark.parametrize("name", RERANKERS)
def test_references_tell_pairs_and_instructions_apart(name: str) -> None:
    reference = read_reference(name)
    assert reference.plain.std(axis=1).min() > 100 * TOLERANCE
    assert np.abs(reference.plain - reference.instructed).max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", RERANKERS)
def test_ranking_and_relevance_are_the_publishers(name: str, tmp_path: Path) -> None:
    ranking = Ranking(write_checkpoint(tmp_path, name), name)
    reference = read_reference(name)
    assert_same_ranking(ranking.relevance(None), reference.plain)
    assert_same_ranking(ranking.relevance(INSTRUCTION), reference.instructed)


def test_a_reranker_that_was_made_a_classifier_has_the_relevance_of_the_original(tmp_path: Path) -> None:
    """As Sentence Transformers does it: the row of "yes" minus that of "no" is the head of its only class."""
    name = "qwen3-reranker"
    directory = write_checkpoint(tmp_path, name)
    write_as_classifier(directory)
    assert_same_ranking(Ranking(directory, name).relevance(INSTRUCTION), read_reference(name).instructed)


@pytest.mark.slow
def test_a_missing_block_of_thoughts_and_merged_pieces_would_be_noticed(tmp_path: Path) -> None:
    known = KnownTemplates.read(None, "any").by_name
    qwen, mxbai = known["qwen3-reranker"].plain, known["mxbai-rerank-v2"].plain
    without_thoughts = replace(qwen, item=(qwen.item[0], ("<|im_end|>\n<|im_start|>assistant\n",)))
    merged = replace(mxbai, query=(mxbai.query[0], tuple(part for piece in mxbai.query[1:] for part in piece)))
    for name, wording in (("qwen3-reranker", without_thoughts), ("mxbai-rerank-v2", merged)):
        faulty = Ranking(write_checkpoint(tmp_path / name, name), name, replace(known[name], plain=wording))
        assert np.abs(faulty.relevance(None) - read_reference(name).plain).max() > 100 * TOLERANCE
