"""Prompts and answers are those of transformers' package ``decision``, by stored references."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model.decisions.checkpoints import VARIANTS, write_variant
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import read_references

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def deciding(variant: str, tmp_path_factory: pytest.TempPathFactory) -> Deciding:
    return Deciding(write_variant(tmp_path_factory.mktemp("decisions"), variant))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_prompt_has_the_ids_and_the_answer_has_the_numbers_of_the_reference(
    name: str, variant: str, deciding: Deciding
) -> None:
    reference = read_references()[variant][name]
    body = REQUESTS[name]
    assert deciding.prompts(body) == reference["prompts"]
    found = deciding.answer(body)["answers"]
    if not VARIANTS[variant].sanitizes:
        # The reference drops sentinels from the names of its answers, too. Here names are those that were sent.
        found = json.loads(json.dumps(found, ensure_ascii=False).replace("<|mark|>", "").replace("<|split|>", ""))
    assert_same_answers(found, reference["answers"])


def assert_same_answers(found: Any, reference: Any) -> None:
    if isinstance(reference, dict):
        assert list(found) == list(reference)
        for name in reference:
            assert_same_answers(found[name], reference[name])
    elif isinstance(reference, float):
        assert abs(found - reference) <= TOLERANCE
    else:
        assert found == reference
