"""Decisions against transformers' own pipeline, computed side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model.decisions.checkpoints import VARIANTS, write_variant
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import read_references
from tests.model.decisions.test_decisions import assert_same_answers

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompts_and_answers_are_those_of_the_pipeline(variant: str, tmp_path: Path) -> None:
    from tests.model.decisions.reference import reference

    directory = write_variant(tmp_path, variant)
    deciding, live, stored = Deciding(directory), reference(directory), read_references()[variant]
    for name, body in REQUESTS.items():
        assert live[name]["prompts"] == stored[name]["prompts"] == deciding.prompts(body)
        assert_same_answers(live[name]["answers"], stored[name]["answers"])
        found = deciding.answer(body)["answers"]
        if not VARIANTS[variant].sanitizes:
            found = json.loads(json.dumps(found, ensure_ascii=False).replace("<|mark|>", "").replace("<|split|>", ""))
        assert_same_answers(found, live[name]["answers"])
