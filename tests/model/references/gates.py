"""Tolerances of scores against HuggingFace, and how differences are measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

FLOAT32_LOGPROBS = 1e-4
"""Largest difference of a float32 log-probability from HuggingFace's float32."""
OF_PROCESSORS = 1e-4
"""Largest difference of HuggingFace's float32 log-probabilities from those that it gave on another processor. A mixture
behind recurrent layers was 7.4e-5 off, an Intel with AMX against an AMD without AVX-512."""
BFLOAT16_LARGEST = 0.02
BFLOAT16_MEAN = 0.01
"""Largest and mean difference of a bf16 label softmax from HuggingFace's float32. The largest one may also be that of
HuggingFace's own bf16."""
OWN_LARGEST = 2.0
OWN_MEAN = 1.5
"""Largest and mean error of bf16 scores, relative to those of HuggingFace's own bf16. The largest of a few dozen scores
depends most on the processor, so more is left to it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two arrays of label softmax scores."""

    largest: float
    mean: float


def label_softmax_difference(one: np.ndarray, other: np.ndarray, labels: tuple[int, ...]) -> Difference:
    """How far two sets of log-probabilities [N, vocabulary] are apart once softmaxed over labels, in float64."""
    scores = [softmax(logprobs[:, labels].astype(np.float64), axis=1) for logprobs in (one, other)]
    apart = np.abs(scores[0] - scores[1])
    return Difference(float(apart.max()), float(apart.mean()))


def assert_bfloat16(ours: np.ndarray, theirs: np.ndarray, theirs_bfloat16: np.ndarray, labels: tuple[int, ...]) -> None:
    """Check a bf16 result against its three tolerances."""
    found = label_softmax_difference(ours, theirs, labels)
    own = label_softmax_difference(theirs_bfloat16, theirs, labels)
    assert found.largest <= max(BFLOAT16_LARGEST, own.largest)
    assert found.mean <= BFLOAT16_MEAN
    assert found.largest <= OWN_LARGEST * own.largest
    assert found.mean <= OWN_MEAN * own.mean
