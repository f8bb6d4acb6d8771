"""The classes of a checkpoint, and how its outputs become scores, as its config.json says it."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.classification import Activation, Classes

CLASSIFIER = {"architectures": ["Qwen3ForSequenceClassification"]}
THREE = {"2": "spam", "0": "news", "1": "offer"}
OF_LIBRARY = "sentence_transformers"


def test_a_language_model_has_no_classes() -> None:
    assert Classes.of({"architectures": ["Qwen3ForCausalLM"], "id2label": THREE}) is None
    assert Classes.of({}) is None


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"id2label": THREE}, ("news", "offer", "spam")),
        ({"id2label": {0: "LABEL_0"}, "num_labels": 1}, ("LABEL_0",)),
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_names_are_those_of_the_checkpoint_or_huggingfaces(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    found = Classes.of(CLASSIFIER | fields)
    assert found is not None
    assert found.names == names


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({"num_labels": 3}, Activation.SOFTMAX),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, Activation.SOFTMAX),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, Activation.SIGMOID),
        ({"num_labels": 1}, Activation.SIGMOID),
        ({"num_labels": 1, "problem_type": "regression"}, Activation.IDENTITY),
        ({"num_labels": 1, OF_LIBRARY: {"activation_fn": "torch.nn.modules.linear.Identity"}}, Activation.IDENTITY),
        ({"num_labels": 1, OF_LIBRARY: {"version": "5.0.0"}}, Activation.SIGMOID),
        ({"num_labels": 2, "sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, Activation.SIGMOID),
    ],
)
def test_the_activation_is_that_of_the_libraries_that_serve_such_checkpoints(
    fields: dict[str, Any], activation: Activation
) -> None:
    found = Classes.of(CLASSIFIER | fields)
    assert found is not None
    assert found.activation is activation


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_labels": 0}, "num_labels must be"),
        ({"id2label": ["news"]}, "id2label must have a name"),
        ({"id2label": {"0": 5}}, "id2label must have a name"),
        ({"id2label": THREE, "num_labels": 2}, "id2label names 3 classes, and num_labels is 2"),
        ({"id2label": {"0": "news", "2": "spam"}}, "none has the number 1"),
        ({"id2label": {"0": "news", "1": "news"}}, "'news' for 2 classes"),
        ({"problem_type": "ranking"}, "problem_type 'ranking'"),
        ({OF_LIBRARY: {"activation_fn": "torch.nn.Tanh"}}, "activation_fn 'torch.nn.Tanh' is not implemented"),
    ],
)
def test_what_has_no_clear_meaning_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Classes.of(CLASSIFIER | fields)
