"""What is kept of the questions of a decision, and the answers that the scores give them.

The formulas are those of the package ``decision`` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scoring.conversion import SMALL_LABEL_MASS, to_scores
from scoring.decisions.orders import Order
from scoring.decisions.prompts import Asked
from scoring.decisions.questions import Kind
from scoring.labels.item_labels import ItemLabels
from scoring.layout import LabelScores
from scoring.quoting import quote


def form_of(
    asked: Sequence[Asked], orders: Sequence[Sequence[Order]], temperatures: Sequence[float], input_tokens: int
) -> dict[str, Any]:
    """Return as JSON what the answers need beside the scores. input_tokens: of all prompts.

    asked: each question with its options as they were sent. orders: in which each is asked.
    """
    return {"input_tokens": input_tokens, "questions": list(map(_form, asked, orders, temperatures))}


def _form(asked: Asked, orders: Sequence[Order], temperature: float) -> dict[str, Any]:
    question = asked.question
    form: dict[str, Any] = {
        "name": question.name,
        "kind": question.kind.value,
        "options": [option.value for option in asked.options],
    }
    if question.legend:
        form["legend"] = list(question.legend)
    if temperature != 1.0:
        form["temperature"] = temperature
    if len(asked.rows.behind) > 1:
        form["places"] = asked.rows.places
    if len(orders) > 1:
        form["orders"] = orders
    # Of all orders, so that a version that knows none finds the next question, and answers this one by its first order.
    if (rows := len(asked.rows.behind) * len(orders)) > 1:
        form["rows"] = rows
    return form


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the answers to a question differ between the orders in which its options were asked."""

    orders: int  # how many there were
    spread: float  # the largest difference between two of them in the probability of an option
    flips: float  # the share of them whose most probable option is not that of all together

    @classmethod
    def of(cls, shares: npt.NDArray[np.float64], together: Sequence[float]) -> Agreement:
        """Compare. shares: [orders, options] of each order. together: [options]."""
        flipped = np.argmax(shares, axis=1) != np.argmax(together)
        return cls(len(shares), float(np.ptp(shares, axis=0).max()), float(flipped.mean()))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question."""

    name: str | None
    kind: Kind
    # In the order of the request; of yes or no, in that of the prompt; of a scale: the numbers of its levels, from 0.
    options: Sequence[str | bool]
    probabilities: Sequence[float]  # of each option
    legend: Sequence[Any]  # of a scale: what each level means
    label_mass: float | None  # the share of the whole vocabulary that the labels have; None: they are no tokens
    argmax_is_label: bool | None  # whether the most probable token is a label, or begins one; None: it is not known
    agreement: Agreement | None = None  # of several orders of the options; None: there was one

    @property
    def yes(self) -> float:
        """The probability of yes."""
        return self.probabilities[list(self.options).index("true")]

    @property
    def best(self) -> int:
        """The index of the most probable option, the first of several."""
        return int(np.argmax(self.probabilities))

    @property
    def score(self) -> float:
        """The mean level of a scale."""
        return sum(level * share for level, share in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """How sure the answer is, between 0 and 1. Of yes or no, the probability itself says it."""
        count = len(self.probabilities)
        if count == 1:
            return 1.0
        if self.kind is Kind.CHOICE:
            return max(0.0, (self.probabilities[self.best] - 1 / count) / (1 - 1 / count))
        distance = sum(share * abs(level - self.best) for level, share in enumerate(self.probabilities))
        uniform = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
        return max(0.0, 1 - distance / uniform)


def answers_of(
    form: Mapping[str, Any], scores: LabelScores, item_labels: ItemLabels, *, of_tokens: bool = True
) -> Iterator[Answer]:
    """Yield the answer to each question. Raises RequestError JOB_FAILED for impossible scores.

    scores: of all rows. of_tokens: whether labels are tokens; otherwise they are rows of a decision head.
    """
    picked = item_labels.pick(scores)
    assert picked.logprobs is not None
    first, softcap = 0, form.get("softcap")
    for question in form["questions"]:
        orders = question.get("orders", [range(len(question["options"]))])
        shares, masses, leads = [], [], []
        for order in orders:
            logits, logprobs = _of_labels(question, picked, first)
            if softcap is not None:
                logits = softcap * np.tanh(logits / softcap)
            of_labels = _softmax(logits, question.get("temperature", 1.0))
            shares.append([of_labels[place] for place in np.argsort(order)])
            if of_tokens:
                masses.append(min(1.0, float(np.exp(logprobs.astype(np.float64)).sum())))
            leads.append(_leads(scores, picked, first))
            first += question.get("rows", 1) // len(orders)
        together = shares[0] if len(orders) == 1 else _mean(np.array(shares))
        yield Answer(
            name=question["name"],
            kind=Kind(question["kind"]),
            options=question["options"],
            probabilities=together,
            legend=question.get("legend", ()),
            label_mass=sum(masses) / len(masses) if masses else None,
            argmax_is_label=None if None in leads else all(leads),
            agreement=None if len(orders) == 1 else Agreement.of(np.array(shares), together),
        )


def _of_labels(
    question: Mapping[str, Any], picked: LabelScores, first: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return logits and log-probabilities of the labels of a question, in the order of its prompt. first: its row."""
    count, places = len(question["options"]), question.get("places")
    assert picked.logprobs is not None
    if places is None:
        return picked.logits[first, :count], picked.logprobs[first, :count]
    logprobs = np.array([sum(picked.logprobs[first + row, place] for row, place in one) for one in places], np.float32)
    return logprobs, logprobs


def _mean(shares: npt.NDArray[np.float64]) -> list[float]:
    """Return the geometric mean of the probabilities of each option, divided by their sum. shares: [orders, options].

    An option that is impossible in one order is impossible. If that makes all of them impossible, it is the plain mean,
    which has only zeros if they are impossible in every order.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(shares).mean(axis=0)
    weights = shares.mean(axis=0) if np.isneginf(logs).all() else np.exp(logs - logs.max())
    found: list[float] = (weights / (weights.sum() or 1.0)).tolist()
    return found


def _softmax(logits: npt.NDArray[np.float32], temperature: float) -> list[float]:
    found: list[float] = to_scores(LabelScores(logits[None], None), True, temperature)[0].tolist()
    return found


def _leads(scores: LabelScores, picked: LabelScores, row: int) -> bool | None:
    if scores.top_logprobs is None or picked.logprobs is None:
        return None
    return bool(picked.logprobs[row].max() >= scores.top_logprobs[row])


def warnings_of_answers(answers: Sequence[Answer]) -> list[str]:
    """Return what the answers give reason to doubt."""
    small = [answer for answer in answers if answer.label_mass is not None and answer.label_mass < SMALL_LABEL_MASS]
    if not small:
        return []
    names = ", ".join("without a name" if answer.name is None else quote(answer.name) for answer in small[:3])
    return [
        f"the labels have less than {SMALL_LABEL_MASS} of the probability together for {len(small)} of {len(answers)} "
        f"questions, such as {names}: the prompt is probably not one that the model answers with these labels"
    ]
