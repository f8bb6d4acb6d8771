"""The service's engine and tokenizer in one object, for systems that are built without the service."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import jax

from benchmarks.shapes import DEMONSTRATION
from checkpoints.source import Contents, find_checkpoint
from model.architecture.config import DecoderConfig
from model.cpu_threads import choose_cpu_threads
from model.engine import Engine
from model.platforms import Platform
from scoring.conversion import to_scores
from scoring.layout import ChunkWork, GroupWork, Head, Rows
from scoring.served_checkpoint import ServedCheckpoint
from settings.engine import EngineSettings
from settings.logs import configure_logs


class Scorer:
    """The demonstration model, loaded and compiled as the worker does it. One thread at a time may score."""

    def __init__(self) -> None:
        configure_logs(logging.WARNING)
        checkpoint = find_checkpoint(str(DEMONSTRATION), None, Contents.WEIGHTS)
        served = ServedCheckpoint.load(checkpoint, name=None, delimiter=None, context_length=None)
        choose_cpu_threads(None, DecoderConfig.from_directory(checkpoint.directory), os.environ)
        self._tokenizer = served.tokenizer
        self.engine = Engine.load(checkpoint.directory, EngineSettings(), served.card, Platform.of(jax.devices()[0]))
        self.engine.warm_up(lambda done, total, what: None)
        self.engine.warm_up_rest(lambda done, total, what: None)

    def group(self, query: str, calls: Sequence[Sequence[str]], labels: Sequence[str]) -> GroupWork:
        """Return the work of calls that share a query."""
        encoder = self._tokenizer.row_encoder(query)
        label_ids = tuple(self._tokenizer.single_token(label) for label in labels)
        chunks = [
            ChunkWork(number, Rows.join(list(encoder(items))), label_ids, Head.LOGITS)
            for number, items in enumerate(calls)
        ]
        return GroupWork("", encoder.query, tuple(chunks))

    def score(self, query: str, items: Sequence[str], labels: Sequence[str]) -> list[list[float]]:
        """Return the softmax over the labels, of each item."""
        (chunk,) = self.engine.score([self.group(query, [items], labels)], lambda: None)
        scores: list[list[float]] = to_scores(chunk.scores, apply_softmax=True).tolist()
        return scores
