"""What a checkpoint with a head for classes says of them: their names, and how its outputs become scores.

Such a head (``...ForSequenceClassification``) has one output for each class and none for the tokens of the vocabulary.
It is read at the last token of a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SUFFIX = "ForSequenceClassification"
"""The end of the name of an architecture with classes."""


FIELDS = (
    "id2label",
    "num_labels",
    "problem_type",
    "sentence_transformers",
    "sbert_ce_default_activation_function",
)
"""The fields of a configuration that say something of classes."""


class Activation(StrEnum):
    """How the outputs of a head become scores."""

    VOCABULARY = "vocabulary"  # by a softmax over the tokens of a vocabulary: the head is that of a language model
    SOFTMAX = "softmax"  # by a softmax over all classes
    SIGMOID = "sigmoid"  # each output by itself, through a sigmoid
    IDENTITY = "identity"  # not at all: an output is a score, such as a reward
    DECISIONS = "decisions"  # by a softmax over the labels of a question: the head is made for decisions

    @property
    def is_softmax(self) -> bool:
        """Whether the outputs share one probability; otherwise each stands by itself."""
        return self in (Activation.VOCABULARY, Activation.SOFTMAX)


_OF_MODULES = {"sigmoid": Activation.SIGMOID, "identity": Activation.IDENTITY, "softmax": Activation.SOFTMAX}
"""The activations by the last parts of the names of PyTorch's modules, in small letters."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a checkpoint."""

    names: tuple[str, ...]  # by the numbers of the outputs
    activation: Activation

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Classes | None:
        """Read the fields of a ``config.json``; None if its head has no classes. Raises ValueError.

        Without ``id2label`` there are ``num_labels`` classes, or two, with HuggingFace's names. The activation is that
        of HuggingFace's pipeline ``text-classification``, unless the checkpoint names one for Sentence Transformers.
        """
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not any(str(name).endswith(SUFFIX) for name in architectures):
            return None
        names = _names(config)
        return cls(names, _activation(config, len(names)))


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    given, count = config.get("id2label"), config.get("num_labels")
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"num_labels must be an integer of at least 1, not {count!r}")
    if given is None:
        return tuple(f"LABEL_{number}" for number in range(count or 2))
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given.values()):
        raise ValueError("id2label must have a name for each class")
    if count is not None and count != len(given):
        raise ValueError(f"id2label names {len(given)} classes, and num_labels is {count}")
    by_number = {str(number): name for number, name in given.items()}
    missing = [number for number in range(len(given)) if str(number) not in by_number]
    if missing:
        raise ValueError(f"id2label has {len(given)} classes, of which none has the number {missing[0]}")
    names = tuple(by_number[str(number)] for number in range(len(given)))
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"id2label has the name {twice[0]!r} for {names.count(twice[0])} classes")
    return names


def _activation(config: Mapping[str, Any], count: int) -> Activation:
    of_library = config.get("sentence_transformers")
    named = of_library.get("activation_fn") if isinstance(of_library, Mapping) else None
    field = "sentence_transformers.activation_fn"
    if named is None:
        field = "sbert_ce_default_activation_function"
        named = config.get(field)
    if named is not None:
        found = _OF_MODULES.get(str(named).rpartition(".")[2].lower())
        if found is None:
            known = ", ".join(name.capitalize() for name in _OF_MODULES)
            raise ValueError(f"{field} {named!r} is not implemented, only {known}")
        return found
    match config.get("problem_type"):
        case "regression":
            return Activation.IDENTITY
        case "multi_label_classification":
            return Activation.SIGMOID
        case "single_label_classification" | None:
            return Activation.SIGMOID if count == 1 else Activation.SOFTMAX
        case other:
            raise ValueError(f"problem_type {other!r} is not implemented")
