"""What answers show that comes of an artefact: calibrated probabilities, and what to do with each item or question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from api.answers.items.column import Column
from judgement.applying import Rule, read_rules, without_prior
from judgement.sample import Floats
from scoring.conversion import check_possible, to_scores
from scoring.decisions.answers import Answer
from scoring.decisions.prompts import text_of
from scoring.decisions.questions import Kind
from scoring.layout import LabelScores
from scoring.options import ScoreOptions


def judged_columns(options: ScoreOptions, scores: LabelScores) -> dict[str, Column]:
    """Return what the artefact of a job makes of N items with M labels; nothing if the job names none.

    scores: of all items of the job if it has a baseline, whose share is then taken away.
    """
    rule = read_rules(options.artefact).get("")
    if rule is None:
        return {}
    shares = rule.calibrated(shares_of_items(rule, options, scores))
    columns = {} if rule.calibration is None else {"calibrated": Column(shares)}
    if rule.threshold is None:
        return columns
    decided = rule.decided(shares)
    columns["action"] = Column(np.array(decided.actions, np.object_))
    if decided.sets is not None:
        ends = np.cumsum([0, *map(len, decided.sets)])
        labels = [label for one in decided.sets for label in one]
        columns["label_set"] = Column(np.array(labels, np.object_), ends=ends)
    return columns


def shares_of_items(rule: Rule, options: ScoreOptions, scores: LabelScores) -> Floats:
    """Return what an artefact is applied to: the probabilities of the labels of each item, without the baseline's."""
    if options.baseline:
        return adjusted_shares(options, scores, rule.temperature)
    return to_scores(scores, True, rule.temperature, options.activation)


def adjusted_shares(options: ScoreOptions, scores: LabelScores, temperature: float) -> Floats:
    """Return the probabilities of the labels of each item, divided by what the baseline gets. Raises RequestError.

    scores: of all items of the job, of which the last ones are its baseline.
    """
    check_possible(scores)
    logits = scores.logits.astype(np.float64)
    return without_prior(logits[: -options.baseline], logits[-options.baseline :], temperature)


def shares_of_answer(answer: Answer) -> list[float]:
    """Return the same of an answer to a question: the probability of each option."""
    # A prompt may ask for no before yes; an artefact has yes first.
    return [answer.yes, 1 - answer.yes] if answer.kind is Kind.NOUL else list(answer.probabilities)


def artefact_ids(options: ScoreOptions) -> dict[str, Any]:
    """Return what provenance says of the artefact of a job of items: the ids of calibration and threshold."""
    rule = read_rules(options.artefact).get("")
    return {} if rule is None else dict(rule.ids)


def judged_answers(options: ScoreOptions, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the field of an answer to questions that says what artefacts make of them; none if none is named."""
    rules = read_rules(options.artefact)
    found = {answer.name: _judged(rules[answer.name], answer) for answer in answers if answer.name in rules}
    return {"judged": found} if found else {}


def _judged(rule: Rule, answer: Answer) -> dict[str, Any]:
    shares = rule.calibrated([shares_of_answer(answer)])
    names = ["true", "false"] if answer.kind is Kind.NOUL else [text_of(option) for option in answer.options]
    shown: dict[str, Any] = {} if rule.calibration is None else {"calibrated": dict(zip(names, shares[0], strict=True))}
    if rule.threshold is not None:
        decided = rule.decided(shares)
        shown["action"] = decided.actions[0]
        if decided.sets is not None:
            shown["label_set"] = decided.sets[0]
    return shown | rule.ids
