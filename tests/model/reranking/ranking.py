"""Rank pairs as the service does: prepare a request in the wording of a template, score it, compute the relevance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkpoints.files import read_model_card
from scoring.layout import ChunkWork, GroupWork
from scoring.prepare import prepare
from scoring.request import parse_score_request
from scoring.templates.known import KnownTemplates
from scoring.templates.template import Template
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model import engines
from tests.model.reranking.rerankers import pairs
from tests.scoring.generous_limits import GENEROUS


class Ranking:
    """A reranker that is loaded as a worker does it, in float32."""

    def __init__(self, directory: Path, name: str, template: Template | None = None) -> None:
        self._tokenizer = TextTokenizer.load(directory)
        self._card = read_model_card(directory, None, None, self._tokenizer)
        self._engine = engines.load(directory, "float32", step_tokens=64)
        known = KnownTemplates.read(None, f"publisher/{name}-base-v2", self._card.classes)
        self._template = template or known.by_name[name]

    def relevance(self, instruction: str | None) -> np.ndarray:
        """Return the relevance of all pairs, float64 [queries, documents]."""
        fields = {"template": self._template.name, "instruction": instruction}
        groups = []
        for number, (query, documents) in enumerate(pairs()):
            request = parse_score_request(
                {"query": query, "items": list(documents), **fields},
                {self._template.name: self._template},
                self._card.classes,
            )
            prepared = prepare(request, self._card, self._tokenizer, GENEROUS)
            (chunk,) = prepared.chunks
            work = ChunkWork(number, chunk.rows, prepared.label_token_ids, request.options.head)
            groups.append(GroupWork("owner", prepared.prefix, (work,)))
        found = {scored.id: scored.scores for scored in self._engine.score(groups, lambda: None)}
        return np.stack([self._template.relevance.of(found[number]) for number in range(len(groups))])
