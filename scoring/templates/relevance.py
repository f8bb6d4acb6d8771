"""Compute one number from the scores of a template's labels: the relevance of an item."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, softmax

from scoring.conversion import check_possible
from scoring.layout import LabelScores
from scoring.templates.wording import TemplateError

_MOST = float(np.finfo(np.float32).max)


class Formula(StrEnum):
    """What is computed of the labels that a relevance names."""

    SOFTMAX = "softmax"  # the share of the label among all labels
    PROBABILITY = "probability"  # of the label, over the whole vocabulary
    LOGIT = "logit"
    DIFFERENCE = "difference"  # the logit of the first label minus that of the second


_WRITTEN = re.compile(r"(sigmoid\()?\s*(softmax|probability|logit|difference)\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*(\))?")


@dataclass(frozen=True, slots=True)
class Relevance:
    """A formula with the indices of its labels, such as ``softmax(0)`` or ``sigmoid(difference(1, 0))``."""

    formula: Formula
    labels: tuple[int, ...]  # two for a difference, else one
    sigmoid: bool = False  # whether 1 / (1 + exp(-x)) is taken of it

    @classmethod
    def read(cls, text: str, labels: int) -> Relevance:
        """Return what a text says of a template with so many labels. Raises TemplateError."""
        match = _WRITTEN.fullmatch(text.strip())
        if match is None or bool(match[1]) is not bool(match[5]):
            raise TemplateError(
                "relevance must be softmax(i), probability(i), logit(i) or difference(i, j), or sigmoid(...) of one of "
                f"them, not {text!r}"
            )
        formula = Formula(match[2])
        named = tuple(int(index) for index in match.group(3, 4) if index is not None)
        if len(named) != (2 if formula is Formula.DIFFERENCE else 1):
            raise TemplateError(f"relevance: {formula} takes {2 if formula is Formula.DIFFERENCE else 1} of the labels")
        if max(named) >= labels:
            raise TemplateError(f"relevance: there is no label {max(named)}; the first of the {labels} labels is 0")
        return cls(formula, named, bool(match[1]))

    def __str__(self) -> str:
        """Return what :meth:`read` reads."""
        text = f"{self.formula}({', '.join(map(str, self.labels))})"
        return f"sigmoid({text})" if self.sigmoid else text

    def of(self, scores: LabelScores, *, raw: bool = False) -> npt.NDArray[np.float64]:
        """Return the relevance of N items, float64 [N], always finite.

        raw: whether to return the logit, log(p / (1 - p)), of a relevance that is a probability p. Raises RequestError
        JOB_FAILED for NaN and +inf, and :class:`ValueError` for missing log-probabilities.
        """
        check_possible(scores)
        value = self._raw(scores) if raw else self._value(scores)
        # Labels whose logits are minus infinity would otherwise make infinities and NaN, which JSON does not have.
        return np.nan_to_num(expit(value) if self.sigmoid and not raw else value, nan=0.0, posinf=_MOST, neginf=-_MOST)

    def _raw(self, scores: LabelScores) -> npt.NDArray[np.float64]:
        """Return the logit of what is a probability, from the logits: a rounded probability of 1 has none."""
        wanted = self.labels[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.formula is Formula.SOFTMAX and not self.sigmoid:
                logits = scores.logits.astype(np.float64)
                of_label: npt.NDArray[np.float64] = logits[:, wanted] - logsumexp(np.delete(logits, wanted, 1), axis=1)
                return of_label
            if self.formula is Formula.PROBABILITY and not self.sigmoid and scores.logprobs is not None:
                logprob = np.minimum(scores.logprobs[:, wanted].astype(np.float64), 0.0)
                return logprob - np.log(-np.expm1(logprob))
        return self._value(scores)

    def _value(self, scores: LabelScores) -> npt.NDArray[np.float64]:
        logits = scores.logits.astype(np.float64)
        with np.errstate(invalid="ignore"):
            match self.formula:
                case Formula.SOFTMAX:
                    shares: npt.NDArray[np.float64] = softmax(logits, axis=1)[:, self.labels[0]]
                    return shares
                case Formula.PROBABILITY:
                    if scores.logprobs is None:
                        raise ValueError("a probability over the vocabulary needs log-probabilities")
                    return np.exp(np.minimum(scores.logprobs[:, self.labels[0]].astype(np.float64), 0.0))
                case Formula.LOGIT:
                    return logits[:, self.labels[0]]
                case Formula.DIFFERENCE:
                    return logits[:, self.labels[0]] - logits[:, self.labels[1]]
