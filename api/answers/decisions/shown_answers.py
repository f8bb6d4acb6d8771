"""Convert the scores of a decision to the JSON of its answer, in the words of the interface that it was asked by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from api.answers.items.judged import judged_answers
from jobs.store.records import JobRecord, Submission
from scoring.decisions.answers import Answer, answers_of, warnings_of_answers
from scoring.decisions.prompts import text_of
from scoring.decisions.questions import Kind
from scoring.labels.item_labels import ItemLabels
from scoring.layout import LabelScores
from scoring.options import Shape

IS_DECISION = frozenset({Shape.SYSTEMONE, Shape.DECISIONS})


def show_decision(
    job: JobRecord | Submission, scores: LabelScores, item_labels: ItemLabels, cached_tokens: int
) -> dict[str, Any]:
    """Return the fields of an answer. scores: of all rows of the job. Raises RequestError JOB_FAILED."""
    assert job.form is not None
    answers = list(answers_of(job.form, scores, item_labels, of_tokens=job.options.is_of_vocabulary))
    warnings = [*job.warnings, *warnings_of_answers(answers)]
    tokens = int(job.form["input_tokens"])
    cached, judged = min(cached_tokens, tokens), judged_answers(job.options, answers)
    if job.options.shape is Shape.SYSTEMONE:
        return {
            "answers": {answer.name: _systemone(answer) for answer in answers},
            "usage": {"input_tokens": tokens, "output_tokens": 0, "cached_tokens": cached},
            "diagnostics": {answer.name: _diagnostics(answer) for answer in answers},
            "warnings": warnings,
            **judged,
        }
    return {
        "object": "decision",
        "answers": [_openai(answer) for answer in answers],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
        "diagnostics": [_diagnostics(answer) for answer in answers],
        "warnings": warnings,
        **judged,
    }


def _diagnostics(answer: Answer) -> Mapping[str, Any]:
    agreement = {} if answer.agreement is None else asdict(answer.agreement)
    return {"label_mass": answer.label_mass, "argmax_is_label": answer.argmax_is_label, **agreement}


def _systemone(answer: Answer) -> Mapping[str, Any]:
    if answer.kind is Kind.NOUL:
        return {"type": "noul", "noul": answer.yes}
    names = [text_of(option) for option in answer.options]
    shares = dict(zip(names, answer.probabilities, strict=True))
    if answer.kind is Kind.CHOICE:
        best = names[answer.best]
        return {"type": "choice", "choice": best, "confidence": answer.confidence, "probabilities": shares}
    return {
        "type": "score",
        "score": answer.score,
        "legend": dict(zip(names, answer.legend, strict=True)),
        "confidence": answer.confidence,
        "probabilities": shares,
    }


def _openai(answer: Answer) -> Mapping[str, Any]:
    named = {"name": answer.name}
    if answer.kind is Kind.NOUL:
        return {"type": "predicate", **named, "probability": answer.yes}
    if answer.kind is Kind.CHOICE:
        shares = [
            {"value": value, "probability": share}
            for value, share in zip(answer.options, answer.probabilities, strict=True)
        ]
        chosen = answer.options[answer.best]
        return {"type": "choice", **named, "choice": chosen, "confidence": answer.confidence, "probabilities": shares}
    shares = [
        {"label": label, "value": level, "probability": share}
        for level, (label, share) in enumerate(zip(answer.legend, answer.probabilities, strict=True))
    ]
    return {"type": "score", **named, "score": answer.score, "confidence": answer.confidence, "probabilities": shares}
