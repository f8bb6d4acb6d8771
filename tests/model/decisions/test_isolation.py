"""The answer to a question has the same bits alone, among other questions, and in any order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from scoring.decisions.decision import TOGETHER
from tests.model.decisions.checkpoints import write_variant
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.requests import REFUND, REQUESTS, TEAM, TICKET, URGENCY
from tests.model.whole_steps.conftest import WHOLE_STEPS

# In packed sequences, which somebody has to ask for, scores are the same up to rounding.
WAYS: dict[str, dict[str, Any]] = {
    "layer by layer": {},
    "whole steps": {"platform": WHOLE_STEPS},
    "serial": {"multi_item_algorithm": "serial"},
}
CODED = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(map(str, range(30)))}
ASKED = {"refund": REFUND, "team": TEAM, "coded": CODED, "urgency": URGENCY, "no instructions": {"type": "noul"}}


@pytest.mark.parametrize(
    ("way", "variant"),
    [
        *((way, "generic") for way in WAYS),
        *(
            pytest.param(way, variant, marks=pytest.mark.matrix if way == "serial" else pytest.mark.slow)
            for way in WAYS
            for variant in ("template", "question first")
        ),
    ],
)
def test_an_answer_does_not_depend_on_the_other_questions(way: str, variant: str, tmp_path: Path) -> None:
    deciding = Deciding(write_variant(tmp_path, variant), **WAYS[way])
    state = REQUESTS["long state"]["state"] if variant == "generic" else TICKET
    others = {f"q{n}": REFUND | {"instructions": f"Is it number {n}?"} for n in range(20)}
    mixed = list((ASKED | others).items())
    random.Random(5).shuffle(mixed)
    among = deciding.answer({"state": state, "questions": dict(mixed)})
    for name, question in ASKED.items():
        alone = deciding.answer({"state": state, "questions": {name: question}})
        assert alone["answers"][name] == among["answers"][name]
        assert alone["diagnostics"][name] == among["diagnostics"][name]


def test_answers_from_one_prompt_carry_a_warning(tmp_path: Path) -> None:
    deciding = Deciding(write_variant(tmp_path, "together"))
    request = {"state": TICKET, "questions": {"refund": REFUND, "team": TEAM}}
    assert deciding.answer(request)["warnings"][0] == TOGETHER
    assert TOGETHER not in deciding.answer({"state": TICKET, "questions": {"refund": REFUND}})["warnings"]
