"""The tokenizer and the model card of a checkpoint, as API and worker both serve it."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoints.card import ModelCard
from checkpoints.files import read_model_card
from checkpoints.source import Checkpoint
from scoring.tokenizing.tokenization import TextTokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ServedCheckpoint:
    """What a process must know of a checkpoint to take or score requests, without its weights."""

    tokenizer: TextTokenizer
    card: ModelCard

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, name: str | None, delimiter: int | None, context_length: int | None
    ) -> ServedCheckpoint:
        """Read the tokenizer and the configuration of a checkpoint.

        name: what requests call the model; None: the checkpoint's own name. delimiter: token id of delimiter mode.
        context_length: longest sequence in tokens that is served; None: the longest that the checkpoint allows.
        Raises :class:`checkpoints.files.CheckpointError`.
        """
        tokenizer = TextTokenizer.load(checkpoint.directory)
        name = checkpoint.name if name is None else name
        return cls(tokenizer, read_model_card(checkpoint.directory, name, delimiter, tokenizer, context_length))
