"""Arrays and columns of NumPy, pandas, Polars and Arrow go in, and come out with every score at its own row."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from scoreline import AsyncClient, BatchEnd, Client, InvalidRequest, JobEnd
from scoreline.client.exchange.bodies import encode_json
from scoreline.client.results import ScoreResult
from tests.scoreline.running import ROOT, Up

TEXTS = ["b", "c d", "e"]
IDS = [[5, 6], [7], [8, 9, 10]]


@pytest.mark.parametrize(
    "items",
    [
        np.array(TEXTS),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="string"),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS]),
        pl.Series(TEXTS),
        tuple(TEXTS),
    ],
    ids=["numpy", "pandas", "pandas strings", "arrow", "arrow chunks", "polars", "tuple"],
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
        (pl.Series([1, 2]), pl.Series(IDS)),
        ([np.int64(1), np.uint8(2)], [tuple(one) for one in IDS]),
    ],
    ids=["numpy", "pandas", "arrow", "polars", "numbers"],
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


@pytest.mark.parametrize(
    "method", ["score", "submit", "upload", "dry_run", "likelihood", "submit_likelihood", "upload_likelihood", "rerank"]
)
def test_one_text_and_a_table_are_no_list_of_items(method: str) -> None:
    send: Callable[..., Any] = getattr(Client("http://127.0.0.1:1", retry_seconds=0), method)
    with pytest.raises(InvalidRequest, match="must be a list of texts, not one text") as raised:
        send("a", "abc")
    assert raised.value.param == ("documents" if method == "rerank" else "items")
    for table in (pd.DataFrame({"text": TEXTS}), pl.DataFrame({"text": TEXTS}), pa.table({"text": TEXTS})):
        with pytest.raises(TypeError, match="name one of its columns"):
            send("a", table)
    with pytest.raises(TypeError, match="a dict is no list"):
        send("a", {"b": "c"})


def test_a_table_and_a_mapping_are_no_pairs() -> None:
    client = Client("http://127.0.0.1:1", retry_seconds=0)
    with pytest.raises(TypeError, match="DataFrame gives no pairs"):
        client.map(pd.DataFrame({"ab": TEXTS}), label_token_ids=[1])
    with pytest.raises(TypeError, match="a dict gives no pairs"):
        client.map({"ab": TEXTS}, label_token_ids=[1])  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="items must be a list of texts"):
        list(client.map([("a", "b")], label_token_ids=[1]))


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
    assert list(named.to_pandas().columns) == ["b", "c", "label_mass"]
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


WHOLE = pd.DataFrame({"place": [f"place {n % 4}" for n in range(24)], "text": [f"text number {n}" for n in range(24)]})
FRAMES = {
    "shuffled": WHOLE.sample(frac=1, random_state=1),
    "filtered": WHOLE[WHOLE.index % 3 == 1],
    "duplicated": pd.concat([WHOLE[:9], WHOLE[:9].iloc[::-1], WHOLE[:4]]),
    "sorted by another column": WHOLE.sort_values("place"),
    "of texts": WHOLE.set_index(WHOLE["text"].str.upper()).iloc[::-1],
    "of two levels": WHOLE.set_index([WHOLE["place"].rename("a"), WHOLE.index]).iloc[::-1],
}
LABELS = [1, 2]


@pytest.fixture(params=FRAMES)
def frame(request: pytest.FixtureRequest) -> pd.DataFrame:
    """A frame whose index does not count its rows."""
    return FRAMES[request.param]


def own_scores(client: Client, query: str, texts: Any) -> list[list[float]]:
    """Return what each text scores if it is asked for alone."""
    alone = {text: client.score(query, [text], label_token_ids=LABELS).scores[0] for text in set(texts)}
    return [alone[text] for text in texts]


def test_a_pandas_column_gets_its_own_index_back(client: Client, frame: pd.DataFrame) -> None:
    expected = own_scores(client, "The answer is", frame["text"])
    found = client.score("The answer is", frame["text"], label_token_ids=LABELS).to_pandas()
    assert found.index.equals(frame.index)
    assert found[LABELS].to_numpy().tolist() == expected
    (mapped,) = client.map([("The answer is", frame["text"])], label_token_ids=LABELS)
    assert mapped.to_pandas().equals(found)
    likelihoods = client.likelihood("The answer is", frame["text"], return_tokens=True)
    table = likelihoods.to_pandas()
    assert table.index.equals(frame.index)
    assert (
        list(table.columns) == likelihoods.to_arrow().column_names == ["logprob", "num_tokens", "is_greedy", "tokens"]
    )
    assert table["logprob"].tolist() == likelihoods.logprob
    ranking = client.rerank("The answer is", frame["text"], return_documents=True, top_n=5).to_pandas()
    assert len(ranking) == 5
    assert ranking.index.equals(frame.index.take(ranking["index"].tolist()))
    assert ranking["text"].tolist() == frame["text"].iloc[ranking["index"]].tolist()
    assert (
        client.score("The answer is", frame["text"].tolist(), label_token_ids=LABELS)
        .to_pandas()
        .index.equals(pd.RangeIndex(len(frame)))
    )


def test_a_job_remembers_the_index_and_the_labels_of_its_request(client: Client, shared_up: Up) -> None:
    frame = FRAMES["shuffled"]
    expected = client.score("The answer is", frame["text"], label_token_ids=LABELS).to_pandas()

    for job in (
        client.submit("The answer is", frame["text"], label_token_ids=LABELS),
        client.upload("The answer is", frame["text"], label_token_ids=LABELS),
    ):
        (*_, end) = client.events(job)
        assert isinstance(end, JobEnd)
        for one in (job, client.wait(job), client.get(job), client.cancel(job), end.job):
            assert one is not None
            assert client.result(one).to_pandas().equals(expected)
        ended = client.wait(job).result
        assert ended is not None
        assert ended.to_pandas().equals(expected)
        by_id = client.result(job.id).to_pandas().set_index(frame.index)
        assert by_id.to_numpy().tolist() == expected.to_numpy().tolist()
    submitted = client.submit_likelihood("The answer is", frame["text"])
    client.wait(submitted)
    assert client.likelihood_result(submitted).to_pandas().index.equals(frame.index)
    uploaded = client.wait(client.upload_likelihood("The answer is", frame["text"])).likelihoods
    assert uploaded is not None
    assert uploaded.to_pandas().equals(client.likelihood("The answer is", frame["text"]).to_pandas())

    async def awaited() -> pd.DataFrame:
        async with AsyncClient(shared_up.url) as other:
            job = await other.wait(await other.submit("The answer is", frame["text"], label_token_ids=LABELS))
            return (await other.result(job)).to_pandas()

    assert asyncio.run(awaited()).equals(expected)


def test_a_long_job_remembers_the_index_of_its_request(client: Client) -> None:
    texts = pd.Series([f"text {n}" for n in range(1_100)]).sample(frac=1, random_state=1)
    job = client.upload("a", texts, label_token_ids=LABELS)
    client.wait(job)
    found = client.result(job).to_pandas()
    assert found.index.equals(texts.index)
    assert list(found.columns) == [*LABELS, "label_mass"]


def test_a_batch_remembers_the_index_of_each_line(client: Client) -> None:
    frame = FRAMES["duplicated"]
    body = {"query": "The answer is", "label_token_ids": LABELS}
    lines = [("first", {**body, "items": ["b"]}), ("second", {**body, "items": frame["text"]})]
    batch = client.batch(lines)
    (*_, end) = client.batch_events(batch)
    assert isinstance(end, BatchEnd)
    for one in (client.wait_batch(batch), client.get_batch(batch), end.batch):
        assert one is not None
        first, second = (result.scores for result in client.batch_results(one))
        assert first is not None
        assert second is not None
        assert first.to_pandas().index.tolist() == [0]
        assert second.to_pandas().index.equals(frame.index)
        assert second.scores == own_scores(client, "The answer is", frame["text"])
    reranked = client.batch({"a": {"query": "The answer is", "documents": frame["text"]}}, endpoint="/v1/rerank")
    (ranking,) = (result.ranking for result in client.batch_results(client.wait_batch(reranked)))
    assert ranking is not None
    table = ranking.to_pandas()
    assert table.index.equals(frame.index.take(table["index"].tolist()))


SECTION = (
    (ROOT / "docs" / "client.md").read_text(encoding="utf-8").partition("## NumPy, pandas")[2].partition("\n## ")[0]
)
BEGINNING, *RECIPES = re.findall(r"^```python\n(.*?)^```", SECTION, re.S | re.M)


class TinyWording:
    """The client that the documentation's recipes use here. The tiny model has other labels."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, labels: object = None, item_template: object = None, **options: Any) -> Any:
            return getattr(self._client, name)(*args, **({"label_token_ids": LABELS} if labels else {}), **options)

        return method


def test_the_recipes_of_the_documentation_keep_every_score_at_its_row(client: Client, frame: pd.DataFrame) -> None:
    names: dict[str, Any] = {"client": TinyWording(client)}
    exec(BEGINNING, names)
    names |= {"frame": frame, "texts": frame["text"].tolist()}
    for recipe in RECIPES:
        exec(recipe, names)
    scored, ranked, of_polars = (names[name] for name in ("scored", "ranked", "scored_too"))
    assert scored[["place", "text"]].equals(frame)
    assert scored[LABELS].to_numpy().tolist() == own_scores(client, "Review: ", frame["text"])
    assert scored["best"].tolist() == [max((0, 1), key=row.__getitem__) for row in scored[LABELS].to_numpy()]
    places = client.rerank("how was the room?", frame["text"].tolist(), top_n=2).results
    assert ranked["text"].tolist() == [frame["text"].iloc[one.index] for one in places]
    assert ranked["relevance_score"].tolist() == [one.relevance_score for one in places]
    assert of_polars["text"].to_list() == frame["text"].tolist()
    assert of_polars.select("1", "2").to_numpy().tolist() == own_scores(client, "Review: ", frame["text"])


def test_cells_of_a_column_without_a_text_are_refused_with_their_rows_and_those_of_a_list_are_scored(
    client: Client,
) -> None:
    cells = [" a", "", " b", None, "  "]
    for column in (pd.Series(cells, index=[9, 8, 7, 6, 5]), pa.chunked_array([cells]), pl.Series(cells)):
        for call in (
            lambda column=column: client.score("The capital", column, labels=[" yes"]),
            lambda column=column: client.submit("The capital", column, labels=[" yes"]),
            lambda column=column: client.upload("The capital", column, labels=[" yes"]),
            lambda column=column: client.rerank("The capital", column),
        ):
            with pytest.raises(
                InvalidRequest, match=r"\[1\] is missing or has no text, and so are 2 more, such as"
            ) as raised:
                call()
            assert "[3], " in str(raised.value)
    assert len(client.score("The capital", [" a", ""], labels=[" yes"]).scores) == 2
