"""The classifier for scikit-learn calibrates what the service scores, and keeps scikit-learn's habits."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from judgement.applying import calibrated
from judgement.calibration import calibrate
from judgement.sample import JudgementError, Sample
from scoreline import Client
from scoreline.runs.windows import MAX_ITEMS
from scoreline.sklearn import LabelClassifier
from tests.scoreline.running import ROOT, Up

CLASSES = {"negative": "b", "positive": "a"}
QUERY, OPTIONS = "Review: ", {"item_template": "{item}\nSentiment:"}


@pytest.fixture
def classifier(shared_up: Up) -> LabelClassifier:
    return LabelClassifier(QUERY, CLASSES, OPTIONS, url=shared_up.url)  # type: ignore[arg-type]


def texts(count: int) -> list[str]:
    return [f"text number {number}" for number in range(count)]


def scored(client: Client, items: list[str]) -> np.ndarray:
    options: dict[str, Any] = {**OPTIONS, "labels": list(CLASSES.values()), "apply_softmax": True}
    found: np.ndarray = np.array(client.score(QUERY, items, **options).scores)
    return found


def drawn(shares: np.ndarray) -> np.ndarray:
    """Classes that are as frequent as the square roots of these shares say: the model is too sure."""
    softened = np.sqrt(shares) / np.sqrt(shares).sum(axis=1, keepdims=True)
    found: np.ndarray = (np.random.default_rng(0).random(len(shares)) > softened[:, 0]).astype(int)
    return found


def test_without_calibration_the_probabilities_are_those_of_the_service(
    classifier: LabelClassifier, client: Client
) -> None:
    found = classifier.fit(texts(4), ["positive", "negative", "positive", "negative"])
    assert found is classifier
    assert classifier.classes_.tolist() == ["negative", "positive"]
    assert classifier.method_ == "identity"
    expected = scored(client, texts(7))
    np.testing.assert_allclose(classifier.predict_proba(texts(7)), expected, rtol=1e-12)
    assert classifier.predict(texts(7)).tolist() == classifier.classes_[expected.argmax(axis=1)].tolist()


def test_with_enough_texts_it_calibrates_as_the_command_does(classifier: LabelClassifier, client: Client) -> None:
    items = texts(MAX_ITEMS + 100)
    shares = np.concatenate([scored(client, items[:MAX_ITEMS]), scored(client, items[MAX_ITEMS:])])
    truth = drawn(shares)
    classifier.fit(np.array(items), np.array(list(CLASSES))[truth])
    expected = calibrate(Sample.of(shares, truth))
    assert classifier.method_ == expected.method != "identity"
    found = classifier.predict_proba(items)
    np.testing.assert_allclose(found, calibrated(expected.method, expected.parameters, shares), rtol=1e-9)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert np.abs(found - shares).max() > 0.01

    never = clone(classifier).set_params(calibration="never").fit(items, truth_names(truth))
    np.testing.assert_allclose(never.predict_proba(items), shares, rtol=1e-12)


def test_probabilities_are_divided_by_what_texts_that_say_nothing_get(
    classifier: LabelClassifier, client: Client
) -> None:
    nothing = ["", "N/A"]
    classifier.set_params(baseline=nothing).fit(texts(2), ["positive", "negative"])
    prior = np.exp(np.log(scored(client, nothing)).mean(axis=0))
    np.testing.assert_allclose(classifier.prior_, prior / prior.sum())
    expected = scored(client, texts(5)) / prior
    np.testing.assert_allclose(classifier.predict_proba(texts(5)), expected / expected.sum(axis=1, keepdims=True))
    one, other = classifier.predict_proba(nothing).prod(axis=0)
    assert one == pytest.approx(other), "neither class is more probable where nothing is said"


@pytest.mark.slow
def test_a_classifier_of_a_real_model_is_right_and_is_not_used_with_other_weights(demonstration: Up) -> None:
    table = pd.read_csv(ROOT / "examples" / "reviews.csv")
    classifier = LabelClassifier(
        "Review: ",
        {"negative": " negative", "positive": " positive"},
        {"item_template": "{item}\nSentiment:"},
        url=demonstration.url,
    )
    first, rest = table[:300], table[300:600]
    classifier.fit(first[["text"]], first["sentiment"])
    assert classifier.method_ != "identity"
    assert classifier.score(rest[["text"]], rest["sentiment"]) >= 0.9
    never = clone(classifier).set_params(calibration="never").fit(first["text"], first["sentiment"])
    losses = [log_loss(rest["sentiment"], one.predict_proba(rest["text"])) for one in (classifier, never)]
    assert losses[0] < losses[1], "it says how often it is right"
    classifier.weights_fingerprint_ = "of another model"
    with pytest.raises(JudgementError, match="fitted to a model with the weights of another model, and the service"):
        classifier.predict(rest["text"])


def truth_names(truth: np.ndarray) -> list[str]:
    return [list(CLASSES)[place] for place in truth]


def test_it_has_the_habits_of_scikit_learn(classifier: LabelClassifier) -> None:
    with warnings.catch_warnings():
        # Its checks send numbers, so most of them are left out for what takes texts.
        warnings.filterwarnings("ignore", message="Can't test estimator")
        check_estimator(classifier)
    items, truth = texts(12), ["negative", "positive", "positive"] * 4
    assert cross_val_score(classifier, items, truth, cv=2, scoring="neg_log_loss").shape == (2,)
    fitted = clone(classifier).fit(items, truth)
    with pytest.warns(DataConversionWarning):
        of_column = clone(classifier).fit(items, np.array(truth)[:, None])
    np.testing.assert_array_equal(of_column.predict_proba(items), fitted.predict_proba(items))
    kept = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(kept.predict_proba(items), fitted.predict_proba(items))
    calibrating = CalibratedClassifierCV(FrozenEstimator(fitted), cv=2).fit(items, truth)
    assert calibrating.predict_proba(items).shape == (12, 2)
    columns = ColumnTransformer([("texts", "passthrough", ["text"])])
    table = pd.DataFrame({"id": range(12), "text": items})
    of_table = make_pipeline(columns, clone(classifier)).fit(table, truth)
    np.testing.assert_array_equal(of_table.predict_proba(table), fitted.predict_proba(items))


def test_classes_are_labels_if_no_others_are_given(shared_up: Up) -> None:
    classifier = LabelClassifier(QUERY, options=OPTIONS, url=shared_up.url)  # type: ignore[arg-type]
    assert set(classifier.fit(texts(2), ["a", "b"]).predict(texts(3))) <= {"a", "b"}


@pytest.mark.parametrize(
    ("changed", "X", "y", "says"),
    [
        ({}, ["a", 1], ["positive", "negative"], "X must be a list of at least one text"),
        ({}, [], [], "X must be a list of at least one text"),
        ({}, [["a", "b"]], ["positive"], "or a table with one column"),
        ({}, ["a", "b"], ["positive"], "there are 2 texts and 1 classes"),
        ({}, ["a", "b"], ["positive"] * 2, "at least two classes"),
        ({}, ["a", "b"], ["positive", "neutral"], "class 'neutral' has no label"),
        ({"labels": None}, ["a", "b"], [0, 1], "class 0 has no label"),
        ({"labels": {0: "a", 1: "a"}}, ["a", "b"], [0, 1], "classes must have different labels"),
        ({}, ["a", "b"], [[0, 1], [1, 0]], "y should be a 1d array"),
        ({"options": {"baseline": [""]}}, ["a", "b"], ["positive", "negative"], "options must not have 'baseline'"),
        ({"calibration": "perhaps"}, ["a", "b"], ["positive", "negative"], "must be 'auto', 'always' or 'never'"),
        ({"calibration": "always"}, ["a", "b"], ["positive", "negative"], "2 independent rows, and 200 are needed"),
    ],
)
def test_what_can_not_be_fitted_is_said_in_one_line(
    changed: dict[str, Any], X: Any, y: Any, says: str, classifier: LabelClassifier
) -> None:
    with pytest.raises(ValueError, match=says) as error:
        classifier.set_params(**changed).fit(X, y)
    assert "\n" not in str(error.value)


def test_nothing_is_predicted_before_it_is_fitted(classifier: LabelClassifier) -> None:
    with pytest.raises(NotFittedError):
        classifier.predict(["a"])
