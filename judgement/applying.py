"""Use what was fitted: calibrate the probabilities of rows, and decide what to do with them. It needs NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from judgement.artefacts import Artefact, Kind
from judgement.sample import Floats, JudgementError

ABSTAIN = "abstain"
"""The action for a row about which a person, or a larger model, should decide."""

LEAST = 1e-30
"""Probabilities that are calibrated count as at least this when their logarithm is taken."""

LEAST_LOGIT = -1e6
"""A logit of a baseline that is minus infinity counts as this, which is below those of all models."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What to do with some rows."""

    actions: list[str]  # [N] a label, or ABSTAIN
    sets: list[list[str]] | None  # [N] the labels that may be true, the most probable first; None for two labels


@dataclass(frozen=True, slots=True)
class Rule:
    """What of an artefact is needed to apply it: small enough to be kept with each job that names it."""

    name: str  # by which it was asked for
    id: str  # of the artefact
    labels: tuple[str, ...]
    temperature: float  # the logits of the labels are divided by it, before their softmax is what is calibrated
    method: str  # of the calibration; "identity": there is none
    parameters: Mapping[str, Any]  # of the method
    calibration: str | None  # the id of the calibration, which of a threshold is inside it; None: there is none
    threshold: float | None  # act on a label from this probability on; None: it is a calibration alone
    set_bound: float | None  # a label is in the set of a row from this probability on; None: there are no sets
    weights: str | None  # the fingerprint of the weights that gave the scores it was fitted to

    @classmethod
    def of(cls, artefact: Artefact, name: str | None = None) -> Rule:
        """Return what is applied of an artefact. name: by which it was asked for; None: its own."""
        is_threshold = artefact.kind is Kind.THRESHOLD
        by = artefact.calibration if is_threshold else artefact
        return cls(
            name=name or artefact.name,
            id=artefact.id,
            labels=artefact.labels,
            temperature=float(artefact.prompt.get("temperature") or 1.0),
            method="identity" if by is None else by.method,
            parameters={} if by is None else by.parameters,
            calibration=None if by is None else by.id,
            threshold=artefact.parameters["threshold"] if is_threshold else None,
            set_bound=artefact.parameters["set_bound"] if is_threshold else None,
            weights=artefact.model.get("weights_fingerprint"),
        )

    @property
    def field(self) -> str:
        """The field of a request that names it."""
        return str(Kind.CALIBRATION if self.threshold is None else Kind.THRESHOLD)

    @property
    def ids(self) -> dict[str, str | None]:
        """The ids of its calibration and its threshold."""
        return {"calibration": self.calibration} | ({} if self.threshold is None else {"threshold": self.id})

    def calibrated(self, probabilities: npt.ArrayLike) -> Floats:
        """Return the calibrated probabilities of rows, [N, K].

        probabilities: [N, K] of its labels, in their order; they need not sum to 1. A row of zeros stays one. Raises
        JudgementError.
        """
        given = np.asarray(probabilities, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != len(self.labels):
            raise JudgementError(f"{self.name} is for the {len(self.labels)} labels {', '.join(self.labels)}")
        if not (np.isfinite(given).all() and (given >= 0).all()):
            raise JudgementError("probabilities must be numbers from 0 on")
        sums = given.sum(axis=1, keepdims=True)
        is_possible = sums > 0
        shares: Floats = given / np.where(is_possible, sums, 1.0)
        return np.where(is_possible, calibrated(self.method, self.parameters, shares), 0.0)

    def decided(self, calibrated: Floats) -> Decided:
        """Return what to do with rows, by a threshold. calibrated: what :meth:`calibrated` returns, [N, K].

        A row of zeros is abstained from, and any label may be the true one.
        """
        assert self.threshold is not None
        acted = zip(calibrated.argmax(axis=1), calibrated.max(axis=1) >= self.threshold, strict=True)
        actions = [self.labels[place] if is_sure else ABSTAIN for place, is_sure in acted]
        if self.set_bound is None:
            return Decided(actions, None)
        inside = in_set(calibrated, self.set_bound) | ~calibrated.any(axis=1, keepdims=True)
        return Decided(actions, _names(inside, calibrated, self.labels))


def write_rules(rules: Mapping[str, Rule]) -> str:
    """Return as JSON what is applied to the questions of these names; ``""`` stands for all items of a job."""
    found = {name: asdict(rule) for name, rule in rules.items()}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_rules(text: str | None) -> dict[str, Rule]:
    """Return what :func:`write_rules` wrote; nothing for None."""
    found: dict[str, dict[str, Any]] = {} if text is None else json.loads(text)
    return {name: Rule(**one | {"labels": tuple(one["labels"])}) for name, one in found.items()}


def apply(artefact: Artefact, probabilities: npt.ArrayLike) -> Floats:
    """Return the calibrated probabilities of rows, [N, K].

    artefact: a calibration, or a threshold, which has the calibration inside that it was made with. probabilities: [N,
    K] of its labels, in their order; they need not sum to 1. Raises JudgementError.
    """
    return Rule.of(artefact).calibrated(probabilities)


def decide(artefact: Artefact, probabilities: npt.ArrayLike) -> Decided:
    """Return what to do with rows, by a threshold.

    probabilities: [N, K] of its labels, as the model gives them: what calibrates them is in the artefact. Raises
    JudgementError.
    """
    if artefact.kind is not Kind.THRESHOLD:
        raise JudgementError(f"{artefact.name} is a {artefact.kind}, and no threshold")
    rule = Rule.of(artefact)
    return rule.decided(rule.calibrated(probabilities))


def calibrated(method: str, parameters: Mapping[str, Any], probabilities: Floats) -> Floats:
    """Return the probabilities of rows, [N, K], as a method of ``judgement.calibration`` corrects them."""
    if method == "identity":
        return probabilities
    logarithms = np.log(np.maximum(probabilities, LEAST))
    if method == "temperature":
        return softmax(logarithms / parameters["temperature"])
    if method == "vector":
        return softmax(logarithms * np.asarray(parameters["weights"]) + np.asarray(parameters["biases"]))
    odds = logarithms[:, 0] - logarithms[:, 1]
    if method == "platt":
        scaled = parameters["slope"] * odds + parameters["intercept"]
        return softmax(np.stack([scaled, np.zeros_like(scaled)], axis=1))
    if method == "isotonic":
        first = np.interp(odds, parameters["log_odds"], parameters["probabilities"])
        return np.stack([first, 1 - first], axis=1)
    raise JudgementError(f"there is no method {method!r}")


def without_prior(logits: Floats, baseline: Floats, temperature: float = 1.0) -> Floats:
    """Return the probabilities of rows, [N, K], divided by what the baseline gets, so that each row sums to 1.

    logits: [N, K], or logarithms of probabilities; a row of minus infinity becomes one of zeros. baseline: [B, K] those
    of texts that say nothing; their mean is the prior of the labels. temperature: by which all of them are divided.
    Source: Zhao and others, Calibrate before use (2021).
    """
    # Probabilities would be rounded to 0 long before their quotient is small.
    prior = np.maximum(baseline, LEAST_LOGIT).mean(axis=0)
    is_possible = ~np.isneginf(logits).all(axis=1, keepdims=True)
    return np.where(is_possible, softmax(np.where(is_possible, logits - prior, 0.0), temperature), 0.0)


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Return the probabilities of logits, [N, K], which are divided by the temperature."""
    with np.errstate(over="ignore"):  # by a tiny temperature: minus infinity is right
        raised = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    shares: Floats = raised / raised.sum(axis=1, keepdims=True)
    return shares


def in_set(probabilities: Floats, bound: float) -> npt.NDArray[np.bool_]:
    """Return which labels are in the set of each row, [N, K]: those with at least this probability, and the best one.

    Source: Sadinle, Lei and Wasserman, Least ambiguous set-valued classifiers with bounded error levels (2019).
    """
    inside: npt.NDArray[np.bool_] = probabilities >= bound
    inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return inside


def _names(inside: npt.NDArray[np.bool_], shares: Floats, labels: Sequence[str]) -> list[list[str]]:
    order = np.argsort(-shares, axis=1, kind="stable")
    return [[labels[k] for k in places if row[k]] for places, row in zip(order, inside, strict=True)]
