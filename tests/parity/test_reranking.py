"""Rankings against the code of the rerankers' publishers, computed side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.model.reranking import publishers
from tests.model.reranking.ranking import Ranking
from tests.model.reranking.rerankers import INSTRUCTION, RERANKERS, read_reference, write_checkpoint
from tests.model.reranking.test_reranking import assert_same_ranking

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", RERANKERS)
def test_ranking_and_relevance_are_the_publishers(name: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, name)
    live = publishers.reference(directory, name)
    np.testing.assert_allclose(live.plain, read_reference(name).plain, atol=2e-5)
    np.testing.assert_allclose(live.instructed, read_reference(name).instructed, atol=2e-5)
    ranking = Ranking(directory, name)
    assert_same_ranking(ranking.relevance(None), live.plain)
    assert_same_ranking(ranking.relevance(INSTRUCTION), live.instructed)
