"""Arrays and columns of NumPy, pandas and Arrow go in, and come out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from scoreline import Client, InvalidRequest
from scoreline.client.exchange.bodies import encode_json
from scoreline.client.results import ScoreResult

TEXTS = ["b", "c d", ""]
IDS = [[5, 6], [7], [8, 9, 10]]


@pytest.mark.parametrize(
    "items",
    [
        np.array(TEXTS),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="string"),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS]),
        tuple(TEXTS),
    ],
    ids=["numpy", "pandas", "pandas strings", "arrow", "arrow chunks", "tuple"],
)
def test_columns_of_texts_are_scored_like_lists(client: Client, items: Any) -> None:
    labels = np.array([1, 2], dtype=np.int32)
    expected = client.score("a", TEXTS, label_token_ids=[1, 2])
    found = client.score("a", items, label_token_ids=labels)
    assert found.scores == expected.scores
    assert found.labels == expected.labels == (1, 2)
    uploaded = client.wait(client.upload("a", items, label_token_ids=labels))
    assert uploaded.result is not None
    assert uploaded.result.scores == expected.scores


@pytest.mark.parametrize(
    ("query", "items"),
    [
        (np.array([1, 2]), [np.array(one, dtype=np.int64) for one in IDS]),
        (pd.Series([1, 2]), pd.Series(IDS)),
        (pa.array([1, 2]), pa.array(IDS)),
        ([np.int64(1), np.uint8(2)], [tuple(one) for one in IDS]),
    ],
    ids=["numpy", "pandas", "arrow", "numbers"],
)
def test_arrays_of_token_ids_are_scored_like_lists(client: Client, query: Any, items: Any) -> None:
    expected = client.score([1, 2], IDS, label_token_ids=[3]).scores
    assert client.score(query, items, label_token_ids=[3]).scores == expected
    same_length = np.array([[5, 6], [7, 8]])
    assert len(client.score([1, 2], same_length, label_token_ids=[3]).scores) == 2


def test_a_missing_value_of_pandas_is_an_error_that_says_where() -> None:
    for items in (["a", pd.NA], ["a", pd.NaT], pd.Series(["a", pd.NA]), pd.Series(["a", None], dtype="string")):
        with pytest.raises(InvalidRequest, match=r"items\[1\] is missing") as raised:
            encode_json({"query": "a", "items": items})
        assert raised.value.param == "items[1]"
    with pytest.raises(TypeError, match="a bytes can't be sent"):
        encode_json({"items": ["a", b"b"]})


def test_a_missing_value_is_an_error_that_says_where(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"items\[1\] is missing") as raised:
        client.score("a", pd.Series(["b", math.nan]), label_token_ids=[1])
    assert raised.value.param == "items[1]"
    with pytest.raises(InvalidRequest, match=r"items\[0\]"):
        client.score("a", pd.Series([None, "b"], dtype="object"), label_token_ids=[1])


def test_what_is_no_column_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="name one of its columns"):
        encode_json({"items": pd.DataFrame({"text": TEXTS})})
    with pytest.raises(TypeError, match="a set can't be sent"):
        encode_json({"items": {"a", "b"}})
    with pytest.raises(TypeError, match="a bytes can't be sent"):
        encode_json({"items": [b"a"]})


def test_scores_become_arrays_and_tables(client: Client) -> None:
    result = client.score("a", TEXTS, label_token_ids=[1, 2], return_logprobs=True)
    array = result.to_numpy()
    assert (array.shape, str(array.dtype), array.tolist()) == ((3, 2), "float64", result.scores)
    np.testing.assert_allclose(np.exp(result.to_numpy("logprobs")), array, rtol=1e-6)
    with pytest.raises(ValueError, match="return_logits"):
        result.to_numpy("logits")
    frame = result.to_pandas()
    assert list(frame.columns) == [1, 2, "label_mass"]
    assert frame[2].tolist() == [row[1] for row in result.scores]
    table = result.to_arrow()
    assert table.column_names == ["1", "2", "label_mass"]
    assert table["label_mass"].to_pylist() == result.label_mass
    named = client.score("a", TEXTS, labels=["b", "c"], apply_softmax=True)
    assert list(named.to_pandas().columns) == ["b", "c"]
    assert client.score("a", [], label_token_ids=[1, 2]).to_numpy().shape == (0, 2)


def test_minus_infinity_and_ragged_rows_have_a_place() -> None:
    usage = {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    raw = {"id": "job_1", "model": "m", "usage": usage, "warnings": [], "scores": [[0.5], [0.25, 0.0]]}
    ragged = ScoreResult.read(raw)
    with pytest.raises(ValueError, match="different numbers of labels"):
        ragged.to_numpy()
    assert ragged.to_pandas()["scores"].tolist() == ragged.to_arrow()["scores"].to_pylist() == raw["scores"]
    infinite = ScoreResult.read({**raw, "scores": [[0.0, 0.5]], "logprobs": [[None, -0.7]]})
    assert infinite.to_numpy("logprobs").tolist() == [[-math.inf, -0.7]]


def test_a_ranking_becomes_a_table(client: Client) -> None:
    documents = pd.Series(["London is in England", "Paris", "The answer is 4"], index=[7, 8, 9])
    frame = client.rerank("What is in England", documents, return_documents=True).to_pandas()
    assert list(frame.columns) == ["index", "relevance_score", "label_mass", "text"]
    assert frame["text"].tolist() == [documents.iloc[index] for index in frame["index"]]
    assert frame["relevance_score"].is_monotonic_decreasing
    assert client.rerank("What is in England", documents, top_n=1).to_arrow().column_names == [
        "index",
        "relevance_score",
        "label_mass",
    ]
