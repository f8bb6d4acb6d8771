"""Models with classes against HuggingFace, computed side by side: their outputs, and the scores of its pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import pipeline

from checkpoints.files import read_classes, read_config, read_model_card
from demonstration.saving import config_fields
from scoring.conversion import to_scores
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model import engines, references
from tests.model.checkpoints import CLASSIFIERS, sequences, tensors, write
from tests.model.references import SEED, huggingface
from tests.model.references.gates import FLOAT32_LOGPROBS, OF_PROCESSORS
from tests.scoring.tokenizing.tokenizer_families import qwen2_5

pytestmark = pytest.mark.parity

LENGTHS = (1, 2, 3, 17, 30, 32, 64, 100, 230, 250)


FEW = ("qwen3 with seven classes", "qwen2 with one output", "qwen3 moe with three classes")
"""Classifiers that are always compared; `make matrix` compares those of the other families."""


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.matrix) for name in CLASSIFIERS]
)
def test_outputs_are_huggingfaces(name: str, tmp_path: Path) -> None:
    stored = write(tmp_path / "stored", CLASSIFIERS[name], tensors(CLASSIFIERS[name], SEED))
    live = huggingface.class_logits(stored, references.rows_of_classifier(name))
    np.testing.assert_allclose(live, references.read_classes(name), atol=OF_PROCESSORS)
    of_ours, of_theirs = list[float](), list[float]()
    for seed, config in ((11, CLASSIFIERS[name]), (12, replace(CLASSIFIERS[name], classes=5))):
        directory = write(tmp_path / str(seed), config, tensors(config, seed))
        rows, engine = sequences(config, seed, LENGTHS), engines.load(directory, "float32")
        expected = huggingface.class_logits(directory, rows)
        for divisor in (2, 10_000):
            found = engines.scores_of(engine, rows, range(config.classes), divisor.__rfloordiv__)
            assert np.abs(found.logits - expected).max() <= FLOAT32_LOGPROBS
        theirs = huggingface.class_logits(directory, rows, "bfloat16")
        ours = engines.scores_of(engines.load(directory, "bfloat16"), rows, range(config.classes)).logits
        of_ours.append(np.abs(ours - expected).mean())
        of_theirs.append(np.abs(theirs - expected).mean())
    assert np.mean(of_ours) <= 1.5 * np.mean(of_theirs)


def test_the_classes_of_a_model_that_takes_pictures_are_huggingfaces(tmp_path: Path) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import Gemma3Config, Gemma3ForSequenceClassification

    shape = CLASSIFIERS["gemma3 with three classes"]
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    names = {0: "good", 1: "bad", 2: "neither"}
    config = Gemma3Config(
        text_config=config_fields(shape) | {"pad_token_id": 0},
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        image_token_index=95,
        mm_tokens_per_image=4,
        id2label=names,
    )
    whole: Any = Gemma3ForSequenceClassification(config)  # type: ignore[no-untyped-call]
    whole.train(False)
    of_text = {name: torch.tensor(each) for name, each in tensors(shape, SEED).items()}
    whole.score.load_state_dict({"weight": of_text.pop("score.weight")})
    whole.model.language_model.load_state_dict({name.removeprefix("model."): each for name, each in of_text.items()})
    whole.save_pretrained(tmp_path)
    rows = [np.clip(row, 1, 94) for row in sequences(shape, 15, LENGTHS)]
    with torch.inference_mode():
        expected = torch.cat([whole(torch.tensor(row[None].astype(np.int64))).logits for row in rows]).numpy()
    found = engines.scores_of(engines.load(tmp_path, "float32"), rows, range(3))
    assert np.abs(found.logits - expected).max() <= FLOAT32_LOGPROBS
    classes = read_classes(read_config(tmp_path))
    assert classes is not None
    assert classes.names == tuple(names.values())


@pytest.mark.parametrize(
    "fields",
    [
        {"id2label": {"0": "news", "1": "spam", "2": "an offer"}},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1},
        {"num_labels": 1, "problem_type": "regression"},
    ],
)
def test_scores_are_those_of_the_pipeline(fields: dict[str, Any], tmp_path: Path) -> None:
    directory = qwen2_5(tmp_path).directory
    tokenizer = TextTokenizer.load(directory)
    config = replace(
        CLASSIFIERS["qwen3 with seven classes"],
        vocabulary=tokenizer.vocabulary,
        classes=fields.get("num_labels", 3),
        family="qwen2",
    )
    written = json.loads((directory / "config.json").read_text())
    write(directory, config, tensors(config, SEED))
    of_model = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(written | of_model | fields))
    classify = pipeline("text-classification", str(directory), top_k=None, dtype="float32")
    card = read_model_card(directory, None, None, tokenizer)
    assert card.classes is not None
    texts = ["What a nice day", "Buy now: 50% off!", "日本語 café"]
    rows = [np.asarray(tokenizer.encode_behind_text(text), np.int32) for text in texts]
    found = engines.scores_of(engines.load(directory, "float32"), rows, range(config.classes))
    ours = to_scores(found, False, activation=card.classes.activation)
    theirs: Any = classify(texts)
    for of_text, scores in zip(theirs, ours, strict=True):
        by_name = {one["label"]: one["score"] for one in of_text}
        np.testing.assert_allclose(scores, [by_name[name] for name in card.classes.names], atol=1e-4)
