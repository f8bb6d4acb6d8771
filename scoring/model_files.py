"""What a checkpoint's own files say of the model, read without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from scoring.model_card import ModelCard

if TYPE_CHECKING:
    from scoring.tokenization import TextTokenizer


class ModelFilesError(Exception):
    """A model directory that can't be served, said in one line."""


def read_model_card(directory: Path, name: str | None, delimiter: int | None, tokenizer: TextTokenizer) -> ModelCard:
    """The card of the checkpoint in ``directory``.

    name: what requests call it; None: the directory's name. delimiter: token id of delimiter mode, or None.
    The context is the configuration's ``max_position_embeddings`` (tokens), the vocabulary the tokenizer's, at most
    the model's logit width. Raises :class:`ModelFilesError`.
    """
    config = _read_config(directory)
    vocabulary = min(tokenizer.vocabulary, _positive(config, "vocab_size", directory))
    if delimiter is not None and not 0 <= delimiter < vocabulary:
        raise ModelFilesError(f"delimiter {delimiter} is no token of {directory}: ids are 0 to {vocabulary - 1}")
    return ModelCard(
        name=name if name is not None else directory.resolve().name,
        context_length=_positive(config, "max_position_embeddings", directory),
        vocabulary=vocabulary,
        tokenizer_fingerprint=tokenizer.fingerprint,
        delimiter=delimiter,
    )


def require_directory(directory: Path) -> None:
    """Raise :class:`ModelFilesError` unless ``directory`` is one: a hub id is never looked up in its place."""
    if not directory.is_dir():
        raise ModelFilesError(f"model directory {directory} does not exist")


def _read_config(directory: Path) -> dict[str, object]:
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


def _positive(config: dict[str, object], field: str, directory: Path) -> int:
    value = config.get(field)
    if type(value) is not int or value <= 0:
        raise ModelFilesError(f"{directory / 'config.json'}: {field} must be a positive integer, not {value!r}")
    return value
