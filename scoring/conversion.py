"""Convert the engine's float32 values to the scores that clients get, in float64 on the CPU.

The front end never imports the accelerator library (ADR-001), so the softmax is SciPy's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from checkpoints.classification import Activation
from scoring.error_codes import ErrorCode, RequestError
from scoring.labels.item_labels import ItemLabels
from scoring.layout import LabelScores

SMALL_LABEL_MASS = 0.1
"""Below this label mass, the model would rather write something else than one of the labels."""

WARNED_SHARE = 0.1
"""There is a warning if the label mass of so many of the items, or more, is small."""

WARNED_ITEMS = 100
"""There is a warning if a label is the most probable one of none of so many items, or more."""

EXAMPLES = 3
"""The items, or labels, that a warning names at most."""


def to_scores(
    scores: LabelScores,
    apply_softmax: bool,
    temperature: float = 1.0,
    activation: Activation = Activation.VOCABULARY,
) -> npt.NDArray[np.float64]:
    """Return the scores of N rows and M labels, float64 [N, M], each in [0, 1] unless outputs are scores.

    With ``apply_softmax`` each row is the softmax of its label logits, divided by the temperature, and sums to 1;
    without it, a row holds the labels' probabilities over the whole vocabulary, or over all classes. A row whose
    logits are all -inf gives zeros (ADR-001). Raises RequestError JOB_FAILED for NaN and +inf, and :class:`ValueError`
    for missing log-probabilities.
    """
    check_possible(scores)
    if not activation.is_softmax:
        outputs = scores.logits.astype(np.float64)
        return expit(outputs) if activation is Activation.SIGMOID else outputs
    values = scores.logits if apply_softmax else scores.logprobs
    if values is None:
        raise ValueError("probabilities over the vocabulary need log-probabilities, and the engine gave none")
    wide = values.astype(np.float64)
    if not apply_softmax:
        # Rounding in float32 can lift the log-probability of an almost certain label slightly above 0.
        return np.exp(np.minimum(wide, 0.0))
    reachable = ~np.isneginf(wide).all(axis=1)
    result = np.zeros_like(wide)
    rows = wide[reachable]
    if not rows.size:  # such as a page behind the last item
        return result
    # Subtracted first, so that the highest logit stays finite however low the temperature is. A log-probability is a
    # logit minus a number that is the same for all labels, so it would give the same.
    with np.errstate(over="ignore"):
        result[reachable] = softmax((rows - rows.max(axis=1, keepdims=True)) / temperature, axis=1)
    return result


def check_possible(scores: LabelScores) -> None:
    """Raise RequestError JOB_FAILED for NaN and +inf."""
    if scores.impossible_row() is not None:
        # The engine refuses to give such values, but an earlier version may have stored them.
        raise RequestError(ErrorCode.JOB_FAILED, "the model gave NaN or infinity for an item; please score it again")


def label_mass(
    scores: LabelScores, label_token_ids: Sequence[int], item_labels: ItemLabels | None = None
) -> npt.NDArray[np.float64] | None:
    """Return how much of the probability over the whole vocabulary the labels have together, float64 [N], in [0, 1].

    A label that is named twice counts once. item_labels: which of the labels each of the items has; None: all of them.
    None if the log-probabilities were not computed.
    """
    if scores.logprobs is None:
        return None
    if item_labels is not None:
        # The labels of such a request are all different.
        own = np.zeros((len(scores), len(label_token_ids) + 1), np.bool_)
        np.put_along_axis(own, item_labels.table().astype(np.int64), True, axis=1)  # NO_LABEL is the last column
        shares = np.where(own[:, :-1], np.exp(scores.logprobs.astype(np.float64)), 0.0)
        own_total: npt.NDArray[np.float64] = shares.sum(axis=1)
        return np.minimum(own_total, 1.0)
    place_of: dict[int, int] = {}
    for place, token in enumerate(label_token_ids):
        place_of.setdefault(token, place)
    first = [place_of[token] for token in sorted(place_of)]
    total: npt.NDArray[np.float64] = np.exp(scores.logprobs[:, first].astype(np.float64)).sum(axis=1)
    return np.minimum(total, 1.0)


def warnings_of_scores(
    mass: npt.NDArray[np.float64] | None,
    scores: npt.NDArray[np.floating],
    counts: npt.NDArray[np.int32] | None = None,
    *,
    items: str = "items",
) -> list[str]:
    """Return what the scores of one-token labels give reason to doubt: the prompt, or a label.

    mass: the label mass of N items; None if it is not known. scores: [N, M], or what has the same order. counts: how
    many labels each item has; None: all. items: what the client calls them. The client has the same rule for what it
    reads in pages (``scoreline/client/doubts.py``).
    """
    warnings = []
    if mass is not None:
        small = np.flatnonzero(mass < SMALL_LABEL_MASS)
        if len(small) and len(small) >= WARNED_SHARE * len(mass):
            warnings.append(
                f"the labels have less than {SMALL_LABEL_MASS} of the probability together for {len(small):,} of "
                f"{len(mass):,} {items}, such as {_named(items, small)}: the prompt is probably not one that the "
                "model answers with these labels"
            )
    if len(scores) < WARNED_ITEMS:
        return warnings
    had = np.full(len(scores), scores.shape[1]) if counts is None else counts
    has = np.arange(scores.shape[1]) < had[:, None]
    highest = np.where(has, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    wins = (has & (scores == highest)).sum(axis=0)
    seen = has.sum(axis=0)
    never = np.flatnonzero((wins == 0) & (seen >= WARNED_ITEMS))
    if len(never):
        others = f"{len(never)} labels, such as " if len(never) > EXAMPLES else ""
        verb = "is" if len(never) == 1 else "are"
        warnings.append(
            f"{others}{_named('labels', never)} {verb} the most probable of none of {int(seen[never[0]]):,} {items}: "
            "either no item calls for it, or it is not written as the model would write it"
        )
    return warnings


def _named(name: str, indices: npt.NDArray[np.int64]) -> str:
    *others, last = [f"{name}[{n}]" for n in indices[:EXAMPLES].tolist()]
    return f"{', '.join(others)} and {last}" if others else last
