"""Read what a checkpoint's files say about the model, without loading it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from checkpoints.card import ModelCard
from checkpoints.classification import Classes
from checkpoints.decision_head import FILES, DecisionHead
from checkpoints.text_part import SAVED, text_config

log = structlog.stdlib.get_logger("scoring")


class CheckpointError(Exception):
    """Why a checkpoint can't be served, in one line."""


class Vocabulary(Protocol):
    """The part of :class:`scoring.tokenizing.tokenization.TextTokenizer` that a model card is made from."""

    vocabulary: int  # one more than the highest token id, added tokens included
    base_vocabulary: int  # one more than the highest token id, added tokens excluded
    fingerprint: str  # a hash over everything that decides how text is encoded

    def added_tokens_from(self, width: int) -> list[str]:
        """Return the added tokens whose ids are at least ``width``, in the order of their ids."""


def read_model_card(
    directory: Path, name: str | None, delimiter: int | None, tokenizer: Vocabulary, longest: int | None = None
) -> ModelCard:
    """Return the card of the checkpoint in ``directory``.

    name: what requests call the model; None: the directory's name. delimiter: token id of delimiter mode, or None.
    longest: length in tokens of the longest sequence served, at most :func:`context_length`; None: just that. The
    vocabulary is the tokenizer's, limited to the width of the model's logits. Raises :class:`CheckpointError`.
    """
    config = read_config(directory)
    vocabulary = _scorable_vocabulary(tokenizer, positive_integer(config, "vocab_size"), directory)
    if delimiter is not None and not 0 <= delimiter < vocabulary:
        raise CheckpointError(f"delimiter {delimiter} is no token of {directory}: ids are 0 to {vocabulary - 1}")
    context = context_length(config)
    if longest is not None and longest > context:
        raise CheckpointError(
            f"context_length {longest} is more than the {context} tokens of the checkpoint in {directory}: "
            "SCORELINE_CONTEXT_LENGTH may only lower it"
        )
    head = read_decision_head(directory)
    classes = read_classes(config) if head is None else head.classes
    return ModelCard(
        name=name if name is not None else directory.resolve().name,
        context_length=longest if longest is not None else context,
        vocabulary=vocabulary,
        tokenizer_fingerprint=tokenizer.fingerprint if classes is None else _with_classes(tokenizer, classes),
        delimiter=delimiter,
        classes=classes,
    )


def read_classes(config: Mapping[str, Any]) -> Classes | None:
    """Return the classes that a ``config.json`` names; None if its head has none. Raises :class:`CheckpointError`."""
    try:
        return Classes.of(config)
    except ValueError as error:
        raise CheckpointError(f"config.json: {error}") from None


def read_decision_head(directory: Path) -> DecisionHead | None:
    """Return the decision head that the files of a checkpoint describe, if any. Raises :class:`CheckpointError`."""
    config, paths = directory / "config.json", [path for path in map(directory.joinpath, FILES) if path.is_file()]
    try:
        if config.is_file() and (fields := read_object(config)).get("model_type") == SAVED:
            return DecisionHead.saved(fields, read_object(directory / "decision.json"))
        return DecisionHead.of({path.stem: read_object(path) for path in paths})
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def _with_classes(tokenizer: Vocabulary, classes: Classes) -> str:
    """Return a fingerprint that only workers with the same tokenizer and the same classes have."""
    meaning = json.dumps([tokenizer.fingerprint, classes.activation, classes.names])
    return hashlib.sha256(meaning.encode()).hexdigest()


def _scorable_vocabulary(tokenizer: Vocabulary, width: int, directory: Path) -> int:
    """Return the number of tokens that the model has logits for. More logits than tokens are usual: they are padding.

    If the vocabulary without added tokens is larger than ``width``, the tokenizer belongs to another model, which is an
    error. Added tokens beyond ``width`` occur in published checkpoints, for instance a padding token that was added
    without growing the model. They do not count as tokens, and a text with one is refused: ``token_id_exceeds_vocab``.
    """
    if tokenizer.base_vocabulary > width:
        raise CheckpointError(
            f"tokenizer and model in {directory} do not belong together: the tokenizer has token ids up to "
            f"{tokenizer.base_vocabulary - 1}, and the model's vocab_size is {width}"
        )
    if beyond := tokenizer.added_tokens_from(width):
        log.warning(
            "the model has no logits for some added tokens: inputs with them are refused",
            tokens=len(beyond),
            first=beyond[0],
            vocab_size=width,
        )
    return min(tokenizer.vocabulary, width)


def context_length(config: Mapping[str, Any]) -> int:
    """Return the length in tokens of the longest sequence that a ``config.json`` allows: ``max_position_embeddings``.

    With YaRN (arXiv:2309.00071), that field is the length before or after stretching, depending on who wrote the file.
    So the stretched length ``factor * original_max_position_embeddings`` is used if it is longer. With LongRoPE
    (arXiv:2402.13753), it is ``original_max_position_embeddings``: the tokens of a longer sequence would have other
    positions than those of a short one, from the first one on. It is the same with ``llama_4_scaling_beta``, because
    queries behind that length would be larger. Raises :class:`CheckpointError`.
    """
    longest, name = positive_integer(config, "max_position_embeddings"), "original_max_position_embeddings"
    scaling = config.get(rope_field(config))
    if isinstance(scaling, Mapping):
        scaling = scaling.get("full_attention", scaling)  # where each kind of layers has its own
    if not isinstance(scaling, Mapping):
        return longest
    kind, factor, original = scaling.get("rope_type", scaling.get("type")), scaling.get("factor"), scaling.get(name)
    if kind == "longrope" or scaling.get("llama_4_scaling_beta") is not None:
        original = config.get(name, original)
        return min(longest, original) if isinstance(original, int) else longest
    if kind != "yarn" or not isinstance(original, int) or not isinstance(factor, int | float):
        return longest
    return max(longest, int(factor * original))


def rope_field(config: Mapping[str, Any]) -> str:
    """Return the name of the field of ``config.json`` that says how rotary positions are stretched.

    If both fields are there, the older one counts, as in HuggingFace's library.
    """
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def positive_integer(config: Mapping[str, Any], field: str) -> int:
    """Return a field of ``config.json`` that must be a positive integer. Raises :class:`CheckpointError`."""
    if field not in config:
        raise CheckpointError(f"config.json lacks {field}")
    value = config[field]
    if type(value) is not int or value <= 0:
        raise CheckpointError(f"config.json: {field} must be a positive integer, not {value!r}")
    return value


def require_directory(directory: Path) -> None:
    """Raise :class:`CheckpointError` unless ``directory`` exists. It is never looked up on the hub instead."""
    try:
        exists = directory.is_dir()
    except OSError as error:
        raise CheckpointError(f"model directory {directory} can't be read: {error}") from error
    if not exists:
        raise CheckpointError(f"model directory {directory} does not exist")


def read_config(directory: Path) -> dict[str, Any]:
    """Return the fields of the ``config.json`` in ``directory``, those of its text part where it has others, too.

    Raises :class:`CheckpointError`.
    """
    return text_config(read_object(directory / "config.json"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the fields of a JSON file in a checkpoint's folder. Raises :class:`CheckpointError`."""
    require_directory(path.parent)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} holds no {path.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {error}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return fields
