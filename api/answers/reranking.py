"""Convert the scores of ranked documents to the JSON of the response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from api.answers.items.column import Column
from api.answers.items.judged import judged_columns
from api.answers.presentation import ScoredJob, encode_slices
from scoring.templates.relevance import Relevance

SLICE_RESULTS = 1_000
SLICE_CHARACTERS = 2**18
"""Results are encoded so many at a time, in some milliseconds: encoding holds the interpreter's lock."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What the answer to a ranking needs beside the scores."""

    top_n: int | None  # how many results are wanted; None: all
    documents: Sequence[str] | None  # as they were sent, if they are to be returned
    formula: str | None  # of the relevance, for a job of an earlier version, which has none
    is_bare: bool = False  # whether the answer is a list alone, as Text Embeddings Inference gives it
    raw: bool = False  # whether the scores of such a list are logits where the relevance is a probability


def encode_ranking(scored: ScoredJob, ranking: Ranking) -> bytes:
    """Return the response of a ranking, encoded. The relevance is by the formula that the job was sent with."""
    documents = ranking.documents
    formula, scores = scored.job.options.relevance or ranking.formula, scored.computed.scores
    assert formula is not None
    values, mass = (
        Relevance.read(formula, scores.logits.shape[1]).of(scores, raw=ranking.raw),
        scored.computed.label_mass,
    )
    others = judged_columns(scored.job.options, scores) | ({} if mass is None else {"label_mass": Column(mass)})
    of_each = {name: column.part(slice(0, len(values))) for name, column in others.items()}
    order = np.argsort(-values, kind="stable")[: ranking.top_n].tolist()
    if ranking.is_bare:
        of_texts = (
            {"index": n, "score": float(values[n])} | ({} if documents is None else {"text": documents[n]})
            for n in order
        )
        return encode_slices(_slices(of_texts))
    results = (
        {"index": n, "relevance_score": (score := float(values[n])), "score": score}
        | {name: of_document[n] for name, of_document in of_each.items()}
        | ({} if documents is None else {"document": {"text": documents[n]}})
        for n in order
    )
    tokens = scored.job.prompt_tokens
    return scored.encode(
        {
            "id": scored.id,
            "object": "list",
            "model": scored.job.model_name,
            "results": encode_slices(_slices(results)),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"billed_units": {"search_units": 1}},
            "warnings": scored.warnings("documents"),
        }
    )


def _slices(results: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield results in slices that are encoded quickly."""
    found: list[dict[str, Any]] = []
    characters = 0
    for result in results:
        found.append(result)
        characters += len(result.get("document", result).get("text", ""))
        if len(found) == SLICE_RESULTS or characters > SLICE_CHARACTERS:
            yield found
            found, characters = [], 0
    if found:
        yield found
