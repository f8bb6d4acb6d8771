"""What a checkpoint's own files say of the model, read without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from checkpoints.card import ModelCard

if TYPE_CHECKING:
    from scoring.tokenization import TextTokenizer

log = structlog.stdlib.get_logger("scoring")


class ModelFilesError(Exception):
    """A model directory that can't be served, said in one line."""


def read_model_card(
    directory: Path,
    name: str | None,
    delimiter: int | None,
    tokenizer: TextTokenizer,
    longest: int | None = None,
) -> ModelCard:
    """The card of the checkpoint in ``directory``.

    name: what requests call it; None: the directory's name. delimiter: token id of delimiter mode, or None. longest:
    sequence in tokens that is served; None: :func:`context_length`, which it may only lower. The vocabulary is the
    tokenizer's, at most the model's logit width. Raises :class:`ModelFilesError`.
    """
    config = read_config(directory)
    vocabulary = _scorable_vocabulary(tokenizer, positive(config, "vocab_size"), directory)
    if delimiter is not None and not 0 <= delimiter < vocabulary:
        raise ModelFilesError(f"delimiter {delimiter} is no token of {directory}: ids are 0 to {vocabulary - 1}")
    context = context_length(config)
    if longest is not None and longest > context:
        raise ModelFilesError(
            f"context_length {longest} is more than the {context} tokens of the checkpoint in {directory}: "
            "SCORELINE_CONTEXT_LENGTH may only lower it"
        )
    return ModelCard(
        name=name if name is not None else directory.resolve().name,
        context_length=longest if longest is not None else context,
        vocabulary=vocabulary,
        tokenizer_fingerprint=tokenizer.fingerprint,
        delimiter=delimiter,
    )


def _scorable_vocabulary(tokenizer: TextTokenizer, width: int, directory: Path) -> int:
    """The tokens that the model has logits for. A width beyond them is padding, which is usual.

    Tokens of the vocabulary proper beyond the width mean that the tokenizer is another model's: refused. Added tokens
    beyond it occur in published checkpoints (a padding token that was added without growing the model): those are
    not tokens here, and a text that spells one is refused as ``token_id_exceeds_vocab``.
    """
    if tokenizer.base_vocabulary > width:
        raise ModelFilesError(
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
    """The longest sequence in tokens that a ``config.json`` allows: its ``max_position_embeddings``.

    With YaRN, that field names the length before or after stretching, depending on who wrote the file, so the stretched
    length ``factor * original_max_position_embeddings`` counts where it is the longer one (YaRN, arXiv:2309.00071).
    Raises :class:`ModelFilesError`.
    """
    longest = positive(config, "max_position_embeddings")
    scaling = config.get(rope_section(config))
    if not isinstance(scaling, Mapping) or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return longest
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if not isinstance(original, int) or not isinstance(factor, int | float):
        return longest
    return max(longest, int(factor * original))


def rope_section(config: Mapping[str, Any]) -> str:
    """The field of a ``config.json`` that says how rotary positions are stretched: the older one, where both are there.

    So HuggingFace reads them; files that carry both are old ones that somebody has added to.
    """
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def positive(config: Mapping[str, Any], field: str) -> int:
    """A field of ``config.json`` that must be a positive integer. Raises :class:`ModelFilesError`."""
    if field not in config:
        raise ModelFilesError(f"config.json lacks {field}")
    value = config[field]
    if type(value) is not int or value <= 0:
        raise ModelFilesError(f"config.json: {field} must be a positive integer, not {value!r}")
    return value


def require_directory(directory: Path) -> None:
    """Raise :class:`ModelFilesError` unless ``directory`` is one: a hub id is never looked up in its place."""
    if not directory.is_dir():
        raise ModelFilesError(f"model directory {directory} does not exist")


def read_config(directory: Path) -> dict[str, Any]:
    """The fields of the ``config.json`` in ``directory``. Raises :class:`ModelFilesError`."""
    require_directory(directory)
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFilesError(f"{directory} holds no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path} can't be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{path} is not a JSON object")
    return config
