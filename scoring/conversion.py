"""From what the engine measured to what the client is told, in float64 on the front end's CPU.

ADR-001: the front end never touches the accelerator library, so softmax is SciPy's here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from scoring.layout import LabelScores


def to_scores(scores: LabelScores, apply_softmax: bool) -> npt.NDArray[np.float64]:
    """Scores of N rows and M labels, float64 [N, M], each in [0, 1].

    With ``apply_softmax`` a row is the softmax of its label logits and sums to 1; without, it holds the labels'
    probabilities over the whole vocabulary. A row of -inf alone gives zeros (ADR-001). Raises :class:`ValueError` for
    NaN or +inf, which no sound model produces, and where log-probabilities are needed but did not come.
    """
    values = scores.logits if apply_softmax else scores.logprobs
    if values is None:
        raise ValueError("probabilities over the vocabulary need log-probabilities, and the engine gave none")
    wide = values.astype(np.float64)
    if np.isnan(wide).any() or np.isposinf(wide).any():
        raise ValueError("the engine gave NaN or +inf for a label")
    if not apply_softmax:
        # Rounding in float32 can lift a certain label's log-probability a hair above 0.
        return np.exp(np.minimum(wide, 0.0))
    reachable = ~np.isneginf(wide).all(axis=1)
    result = np.zeros_like(wide)
    result[reachable] = softmax(wide[reachable], axis=1)
    return result
