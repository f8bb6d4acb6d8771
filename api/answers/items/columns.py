"""The values that answers show of each item: scores of labels, or the likelihood of the item itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_expit

from api.answers.items.column import Column
from api.answers.items.judged import adjusted_shares, judged_columns
from checkpoints.classification import Activation
from jobs.store.records import JobRecord, ScorePage, Submission
from scoring.conversion import check_possible, label_mass, to_scores, warnings_of_scores
from scoring.labels.item_labels import ItemLabels
from scoring.layout import Continuations, LabelScores, TargetScores
from scoring.options import Scoring, Shape
from scoring.templates.relevance import Relevance


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What was computed of N items of a job."""

    job: JobRecord | Submission
    scores: LabelScores
    item_labels: ItemLabels | None = None  # the labels of these items, if each has its own
    # Where an answer needs them: see ScoreOptions.needs_targets.
    continuations: Continuations | None = None
    targets: TargetScores | None = None

    @property
    def label_mass(self) -> npt.NDArray[np.float64] | None:
        """The labels' share of the probability of each item, if it was computed: float64 [N]."""
        if self.job.options.scoring is Scoring.LIKELIHOOD or not self.job.options.is_of_vocabulary:
            return None
        scores = self.scores
        if self.continuations is not None and scores.logprobs is not None:
            # The log-probabilities were divided by these.
            whole = scores.logprobs * self.continuations.divisors.reshape(scores.logprobs.shape)
            scores = LabelScores(scores.logits, whole.astype(np.float32))
        return label_mass(scores, self.job.label_token_ids, self.item_labels)

    def warnings(self, items: str) -> list[str]:
        """Return what the scores give reason to doubt. items: what the client calls the items.

        Where continuations are scored, the model could go on in many other ways, so a small share says nothing. Classes
        are known to be the model's own.
        """
        if self.job.options.has_continuations or not self.job.options.is_of_vocabulary:
            return []
        own, mass = self.item_labels, self.label_mass
        logits = (self.scores if own is None else own.pick(self.scores)).logits
        if baseline := self.job.options.baseline:
            mass, logits = None if mass is None else mass[:-baseline], logits[:-baseline]
        return warnings_of_scores(mass, logits, None if own is None else own.counts, items=items)


def computed_of(page: ScorePage) -> Computed:
    of_job = page.job.item_labels
    item_labels = None if of_job is None else of_job.of(page.indices)
    return Computed(page.job, page.scores, item_labels, page.continuations, page.targets)


def columns_of(computed: Computed) -> dict[str, Column]:
    """Return the values to show, by the names of their fields. Raises RequestError JOB_FAILED for impossible ones.

    What an artefact makes of a job with a baseline is left out: see :func:`whole_columns`.
    """
    if computed.job.options.scoring is Scoring.LIKELIHOOD:
        return _of_likelihoods(computed)
    scores, options, item_labels = computed.scores, computed.job.options, computed.item_labels
    # Items with labels of their own have as many as the one with most of them, and the others are filled up.
    shown = scores if item_labels is None else item_labels.pick(scores)
    counts = None if item_labels is None else item_labels.counts
    values = to_scores(shown, options.apply_softmax, options.temperature, options.activation)
    columns = {"scores": Column(values, counts)}
    if options.return_logprobs and options.activation is Activation.SIGMOID:
        columns["logprobs"] = Column(log_expit(shown.logits), counts)
    elif options.return_logprobs and shown.logprobs is not None:
        columns["logprobs"] = Column(shown.logprobs, counts)
    if options.return_logits:
        columns["logits"] = Column(shown.logits, counts)
    if (mass := computed.label_mass) is not None:
        columns["label_mass"] = Column(mass)
    if options.relevance is not None:
        columns["relevance"] = Column(Relevance.read(options.relevance, scores.logits.shape[1]).of(scores))
    return columns if options.baseline else columns | judged_columns(options, shown)


def whole_columns(computed: Computed) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the values of the items to show, and what a baseline got, by the names of their fields.

    computed: of all items of a job, of which the last ones are its baseline, if it has any. Raises RequestError.
    """
    options, columns = computed.job.options, columns_of(computed)
    if not options.baseline:
        return columns, {}
    items = len(computed.scores) - options.baseline
    shown = {"scores": columns["scores"]} | ({"label_mass": columns["label_mass"]} if "label_mass" in columns else {})
    baseline = {name: column.part(slice(items, None)) for name, column in shown.items()}
    kept = {name: column.first(items) for name, column in columns.items()}
    kept["adjusted"] = Column(adjusted_shares(options, computed.scores, options.temperature))
    return kept | judged_columns(options, computed.scores), {"baseline": baseline}


def _of_likelihoods(computed: Computed) -> dict[str, Column]:
    scores, continuations, targets = computed.scores, computed.continuations, computed.targets
    # The store keeps all of them together.
    assert scores.logprobs is not None
    assert continuations is not None
    assert targets is not None
    check_possible(scores)
    form = computed.job.form
    if computed.job.options.shape is Shape.COMPLETION and form is not None and form["max_tokens"]:
        return _of_prompts(continuations, targets)
    columns = {
        "logprob": Column(scores.logprobs[:, 0]),
        "num_tokens": Column(continuations.lengths),
        "is_greedy": Column(targets.greedy),
    }
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(continuations.lengths, dtype=np.int64)])
    if computed.job.options.return_token_logprobs:
        columns["token_logprobs"] = Column(targets.token_logprobs, ends=ends)
    if computed.job.options.return_tokens:
        columns["tokens"] = Column(continuations.tokens, ends=ends)
    return columns


def _of_prompts(continuations: Continuations, targets: TargetScores) -> dict[str, Column]:
    """Return the likelihoods of prompts behind each of which, as its last target, a placeholder was read."""
    prompts, lengths = len(continuations), continuations.lengths - 1
    of_prompt = np.repeat(np.arange(prompts), continuations.lengths)
    is_own = np.diff(of_prompt, append=prompts) == 0
    highest = targets.token_logprobs if targets.top is None else targets.top.logprobs
    missed = np.bincount(of_prompt[is_own & (targets.token_logprobs < highest)], minlength=prompts)
    sums = np.bincount(of_prompt[is_own], targets.token_logprobs[is_own].astype(np.float64), prompts)
    return {
        "logprob": Column(sums.astype(np.float32)),
        "num_tokens": Column(lengths),
        "is_greedy": Column(missed == 0),
    }
