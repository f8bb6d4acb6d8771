"""Decisions against transformers' own pipeline, computed side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoints.files import read_model_card
from scoring.decisions.checkpoint import DecisionCheckpoint, LabelRows
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import read_systemone
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model.decisions.checkpoints import VARIANTS, write_variant
from tests.model.decisions.deciding import Deciding
from tests.model.decisions.heads import BODIES, HEADS, write_as_body, write_head
from tests.model.decisions.requests import REQUESTS
from tests.model.decisions.stored import read_references
from tests.model.decisions.test_decisions import assert_same_answers
from tests.packed_rows import whole_sequences
from tests.scoring.tokenizing.tokenizer_families import FAMILIES, family

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


@pytest.mark.parametrize("name", [*HEADS, *(pytest.param(name, marks=pytest.mark.matrix) for name in BODIES)])
def test_a_decision_head_has_the_answers_of_the_reference_on_the_body_of_any_family(name: str, tmp_path: Path) -> None:
    from tests.model.decisions.reference import reference_of_head

    directory = write_head(tmp_path, (HEADS | BODIES)[name])
    deciding, live = Deciding(directory), reference_of_head(directory)
    stored = read_references().get(name, {})
    for asked, body in REQUESTS.items():
        assert live[asked]["prompts"] == deciding.prompts(body)
        assert_same_answers(deciding.answer(body)["answers"], live[asked]["answers"])
        if asked in stored:
            assert_same_answers(live[asked]["answers"], stored[asked]["answers"])


@pytest.mark.parametrize("name", ["slots on gemma3", "codes"])
def test_a_model_that_transformers_has_saved_has_the_answers_of_the_pipeline(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, JevForDecision

    from tests.model.decisions.reference import reference

    shipped, saved = write_head(tmp_path / "shipped", HEADS[name]), tmp_path / "saved"
    jev: Any = JevForDecision
    jev.from_pretrained(shipped).save_pretrained(saved)
    AutoTokenizer.from_pretrained(shipped).save_pretrained(saved)
    found = Deciding(saved).answer(REQUESTS["three kinds"])["answers"]
    assert_same_answers(found, reference(saved, ["three kinds"])["three kinds"]["answers"])


@pytest.mark.parametrize("name", ["slots", "codes on qwen35"])
def test_the_body_of_a_head_may_have_none_of_its_own(name: str, tmp_path: Path) -> None:
    from tests.model.decisions.reference import reference_of_head

    directory = write_as_body(write_head(tmp_path, HEADS[name]))
    live = reference_of_head(directory, ["three kinds"])
    assert_same_answers(Deciding(directory).answer(REQUESTS["three kinds"])["answers"], live["three kinds"]["answers"])


@pytest.mark.parametrize("name", ["codes", "codes on qwen35"])
def test_the_pipeline_finds_a_decision_head_by_itself(name: str, tmp_path: Path) -> None:
    from tests.model.decisions.reference import reference

    directory = write_head(tmp_path, HEADS[name])
    found = Deciding(directory).answer(REQUESTS["three kinds"])["answers"]
    assert_same_answers(found, reference(directory, ["three kinds"])["three kinds"]["answers"])


TEMPLATED = ("template", "question first", "unsanitized", "together")


@pytest.mark.parametrize("variant", TEMPLATED)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_prompts_of_a_decision_template_are_those_of_the_pipeline_with_every_tokenizer(
    name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The small vocabularies have no single tokens for letters.
    monkeypatch.setattr(DecisionCheckpoint, "rows_of", lambda *_: LabelRows.of([(0,)]))
    from transformers.decision.configuration_utils import DecisionConfig

    directory = tmp_path / "model"
    shutil.copytree(family(name).directory, directory)
    template = VARIANTS[variant].template
    assert template is not None
    begin = family(name).fragments[0]  # a control token of its own, behind which some mark a beginning
    (directory / "decision_template.jinja").write_text(begin + template)
    if (own := VARIANTS[variant].config) is not None:
        (directory / "decision.json").write_text(json.dumps(own))
    reference = DecisionConfig.from_pretrained(directory)
    tokenizer = TextTokenizer.load(directory)
    card = read_model_card(directory, None, None, tokenizer)
    writer = PromptWriter(DecisionCheckpoint.read(directory, tokenizer), tokenizer)
    for body in REQUESTS.values():
        questions = read_systemone(body["questions"])
        asked = writer.ask(questions, ["q"] * len(questions))
        encoded = writer.write(body["state"], asked).encode(card, tokenizer, lambda: None)
        texts = writer.write(body["state"], asked).behind
        rows = [one for rows in encoded.encode_items(texts, 0) for one in whole_sequences(encoded.prefix, rows)]
        live = [
            inputs["input_ids"][0, :mark].tolist()
            for inputs, _ in reference.prepare_inputs(body, family(name).transformers)
            for mark in inputs["marks"].tolist()
        ]
        assert rows == live
