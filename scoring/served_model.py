"""What a process must know of a model to read requests for it: its tokenizer, its card, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import structlog

from checkpoints.card import ModelCard
from checkpoints.source import Checkpoint
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.prompts import PromptWriter
from scoring.served_checkpoint import ServedCheckpoint
from scoring.templates.known import KnownTemplates, require_fit
from scoring.templates.wording import TemplateError
from scoring.tokenizing.tokenization import TextTokenizer

log = structlog.stdlib.get_logger("scoring")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One model, without its weights."""

    tokenizer: TextTokenizer
    card: ModelCard
    templates: KnownTemplates
    decisions: DecisionCheckpoint  # how it is asked for decisions

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        name: str | None,
        delimiter: int | None,
        context_length: int | None,
        template: str | None,
        version: int | None = None,
    ) -> ServedModel:
        """Read the files of a checkpoint.

        name, delimiter, context_length: see :meth:`scoring.served_checkpoint.ServedCheckpoint.load`. template: by which
        documents are ranked; None: the one that was made for a model of this name. version: see ModelCard.
        Raises CheckpointError, and TemplateError if the template that is named can't be used.
        """
        served = ServedCheckpoint.load(checkpoint, name=name, delimiter=delimiter, context_length=context_length)
        card = replace(served.card, version=version)
        templates = KnownTemplates.read(template, card.name, card.classes)
        if templates.default is not None:
            try:
                require_fit(templates.default, served.tokenizer, has_classes=card.classes is not None)
            except TemplateError as error:
                if template is not None:
                    raise
                log.warning("documents can't be ranked without a template", model=card.name, reason=str(error))
        decisions = DecisionCheckpoint.read(checkpoint.directory, served.tokenizer)
        return cls(served.tokenizer, card, templates, decisions)

    @cached_property
    def prompts(self) -> PromptWriter:
        """What writes the prompts of its decisions. Raises RequestError if none can be asked of it."""
        return PromptWriter(self.decisions, self.tokenizer)

    def in_one_thread(self) -> ServedModel:
        """Return this model for a caller that must not wait for the tokenizer's own threads."""
        return replace(self, tokenizer=self.tokenizer.in_one_thread())
