"""A classifier of texts for scikit-learn, whose probabilities are those that a served model gives to label tokens.

It needs ``pip install "scoreline[judgement]"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from judgement.applying import LEAST, calibrated, softmax
from judgement.calibration import LEAST_ROWS, LEAST_ROWS_OF_A_LABEL, calibrate
from judgement.sample import Floats, JudgementError, Sample
from scoreline.client import Client
from scoreline.client.options import ScoreOptions
from scoreline.judging.backlog import Backlog
from scoreline.runs.prompts import Columns


class LabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The class of a text is the label that the model finds most probable behind it.

    Nothing of the model is trained. ``fit`` finds what makes its probabilities say how often they are right, as
    ``scoreline calibrate`` does, so it needs far fewer texts than a training.

    query: what stands before every text. labels: the text of the label of each class; None: the classes are these
    texts themselves. options: how the texts are scored, as for :meth:`Client.score`.
    calibration: ``"auto"``: calibrate if there are texts enough for it, 200 in all and 10 of each class; ``"always"``:
    raise JudgementError if there are not; ``"never"``: leave the probabilities as they are.
    baseline: texts that say nothing, such as ``""`` and ``"N/A"``. What the model finds probable behind them is its
    prior, by which probabilities are divided; it takes no labels. Source: Zhao and others, Calibrate before use (2021).
    url, api_key: those of the service; None: as for :class:`Client`.

    After ``fit``, ``classes_`` has the classes in the order of the columns of ``predict_proba``, ``method_`` and
    ``parameters_`` say how probabilities are calibrated, ``prior_`` is that of each class, and
    ``weights_fingerprint_`` says whose they are.

    Source of the interface: https://scikit-learn.org/stable/developers/develop.html
    """

    def __init__(
        self,
        query: str = "",
        labels: Mapping[Any, str] | None = None,
        options: ScoreOptions | None = None,
        calibration: Literal["auto", "always", "never"] = "auto",
        baseline: Sequence[str] = (),
        url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self.query = query
        self.labels = labels
        self.options = options
        self.calibration = calibration
        self.baseline = baseline
        self.url = url
        self.api_key = api_key

    def fit(self, X: Any, y: Any) -> Self:
        """Calibrate with some texts, [N], and their classes, [N].

        Raises ValueError, JudgementError and ScorelineError.
        """
        if self.calibration not in ("auto", "always", "never"):
            raise ValueError(f"calibration must be 'auto', 'always' or 'never', not {self.calibration!r}")
        texts = _texts(X)
        check_classification_targets(y)
        self.classes_, truth = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(truth) != len(texts):
            raise ValueError(f"there are {len(texts)} texts and {len(truth)} classes")
        if len(self.classes_) < 2:
            raise ValueError("there must be texts of at least two classes")
        self.label_texts_ = [self._label_of(one) for one in self.classes_.tolist()]
        if len(set(self.label_texts_)) < len(self.label_texts_):
            raise ValueError(f"classes must have different labels, not {self.label_texts_}")
        if own := sorted({"labels", "baseline"} & {*(self.options or {})}):
            raise ValueError(f"options must not have {own[0]!r}: give it to the classifier itself")
        self.method_, self.parameters_ = "identity", dict[str, Any]()
        shares, self.prior_, self.weights_fingerprint_ = self._scored(texts)
        enough = len(texts) >= LEAST_ROWS and np.bincount(truth).min() >= LEAST_ROWS_OF_A_LABEL
        if self.calibration == "always" or (self.calibration == "auto" and enough):
            found = calibrate(Sample.of(shares, truth))
            self.method_, self.parameters_ = found.method, dict(found.parameters)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class for some texts, [N, K].

        Raises JudgementError if they were calibrated for the scores of other weights, and ScorelineError.
        """
        check_is_fitted(self)
        shares, _, weights = self._scored(_texts(X))
        known = self.weights_fingerprint_
        if self.method_ != "identity" and None not in (weights, known) and weights != known:
            raise JudgementError(
                f"the classifier was fitted to a model with the weights {known}, and the service has {weights} now: "
                "fit it again"
            )
        return calibrated(self.method_, self.parameters_, shares)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of some texts, [N]. Raises what :meth:`predict_proba` raises."""
        best = self.predict_proba(X).argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[best]
        return found

    def _label_of(self, of_class: Any) -> str:
        label = of_class if self.labels is None else self.labels.get(of_class)
        if not isinstance(label, str):
            raise ValueError(f"class {of_class!r} has no label: give its text as labels={{{of_class!r}: ' ...', ...}}")
        return label

    def _scored(self, texts: Sequence[str]) -> tuple[Floats, Floats, str | None]:
        """Return the probabilities of the labels, [N, K], the prior, [K], and the weights that gave them, if known.

        Each row has a sum of 1, and is divided by the prior.
        """
        options = {**(self.options or {}), "labels": self.label_texts_, "baseline": list(self.baseline) or None}
        where = Columns(None, "text", self.query, scores_empty=True)
        backlog = Backlog([{"text": text} for text in texts], [(where, options)])
        with Client(self.url, api_key=self.api_key) as client:
            (answers,) = backlog.read(client.map(backlog.pairs))
        prior = np.log(np.maximum(answers.baseline or [[1.0] * len(self.label_texts_)], LEAST)).mean(axis=0)
        return np.array(answers.shares), softmax(prior[None])[0], (answers.model or {}).get("weights_fingerprint")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


def _texts(given: Any) -> list[str]:
    """Return the texts of a list, an array, a column, or a table with one column."""
    values = np.asarray(given, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    texts: list[Any] = values.tolist() if values.ndim == 1 else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("X must be a list of at least one text, or a table with one column of texts")
    return texts
