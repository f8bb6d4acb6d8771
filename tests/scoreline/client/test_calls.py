"""The client against a running service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from scoreline import Client, InvalidRequest, RequestTooLarge, ScorelineError, Unauthorized
from tests.services import free_port, wait_until


def test_score_returns_a_row_per_item_and_a_column_per_label(client: Client) -> None:
    result = client.score("The capital", [" of France", " of Japan"], label_token_ids=[5, 6, 7], return_logprobs=True)
    assert [len(row) for row in result.scores] == [3, 3]
    assert result.logprobs is not None
    assert result.logits is None
    assert result.prompt_tokens > 0
    assert result.raw["object"] == "scoring"


def test_token_ids_can_be_scored_instead_of_texts(client: Client) -> None:
    query, item = "The capital", " of France"
    by_text = client.score(query, [item], label_token_ids=[5])
    by_ids = client.score(client.tokenize(query), [client.tokenize(item)], label_token_ids=[5])
    assert by_text.scores == by_ids.scores


def test_documents_are_ranked(client: Client) -> None:
    documents = ["London is in England", "Paris", "The answer is 4"]
    ranking = client.rerank("What is in England", documents, return_documents=True)
    assert sorted(result.index for result in ranking.results) == [0, 1, 2]
    relevance = [result.relevance_score for result in ranking.results]
    assert relevance == sorted(relevance, reverse=True)
    assert all(result.text == documents[result.index] for result in ranking.results)
    assert all(0 <= (result.label_mass or -1) <= 1 for result in ranking.results)
    assert (ranking.id, ranking.model) == (ranking.raw["id"], ranking.raw["model"])
    assert ranking.prompt_tokens > 0
    best = client.rerank("What is in England", documents, top_n=1, instruction="Think of cities", template="yes-no")
    assert [result.text for result in best.results] == [None]
    with pytest.raises(ScorelineError) as refused:
        client.rerank("", documents)
    assert refused.value.code == "empty_query"


def test_models_name_the_template_by_which_they_rank(client: Client) -> None:
    (model,) = client.models()
    assert (model.template, model.live_workers) == ("yes-no", 1)


def test_labels_can_be_given_for_each_item(client: Client) -> None:
    by_text = client.score("a", ["b", "c"], labels=[["b"], ("c", "d")])
    assert [len(row) for row in by_text.scores] == [1, 2]
    assert by_text.labels is None
    assert by_text.scores[1] == client.score("a", ["c"], labels=["c", "d"]).scores[0]
    result = client.score("a", ["b", "c"], label_token_ids=[[5], [6, 7]], apply_softmax=True, temperature=2)
    assert [len(row) for row in result.scores] == [1, 2]


def test_a_job_can_be_submitted_awaited_read_and_deleted(client: Client) -> None:
    job = client.submit("a", ["b", "c"], label_token_ids=[5], metadata={"run": "7"})
    job = client.wait(job.id)
    assert (job.status, job.ended, job.scored_items, job.metadata) == ("succeeded", True, 2, {"run": "7"})
    assert job.result is not None
    assert job.result.scores == client.score("a", ["b", "c"], label_token_ids=[5]).scores
    assert client.cancel(job.id).status == "succeeded"
    client.delete(job.id)
    with pytest.raises(ScorelineError) as missing:
        client.get(job.id)
    assert (missing.value.code, missing.value.status) == ("job_not_found", 404)


def test_the_api_key_is_the_given_one_or_else_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

    server = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.delenv("SCORELINE_API_KEY", raising=False)
    for variable, given in (
        (None, None),
        ("from-outside\n", None),
        ("from-outside", "given"),
        ("from-outside", " given\r\n"),
        ("from-outside", ""),
    ):
        if variable is not None:
            monkeypatch.setenv("SCORELINE_API_KEY", variable)
        with Client(url, api_key=given) as client:
            client.models()
    server.shutdown()
    server.server_close()
    assert seen == [None, "Bearer from-outside", "Bearer given", "Bearer given", None]


@pytest.mark.parametrize("key", ["secret-\N{EURO SIGN}", "secret-\nlines"])
def test_a_key_that_no_header_can_carry_is_an_error_that_does_not_quote_it(key: str) -> None:
    with pytest.raises(Unauthorized) as raised:
        Client("http://127.0.0.1:1", api_key=key)
    assert raised.value.is_final
    assert "secret" not in str(raised.value)


def test_scores_are_read_in_pages(client: Client) -> None:
    items = [f"item {n}" for n in range(25)]
    job = client.wait(client.submit("a", items, label_token_ids=[5]).id, 30)
    assert job.result is not None
    paged = list(client.scores(job.id, page_items=10))
    assert [item.index for item in paged] == list(range(25))
    assert [item.scores for item in paged] == job.result.scores


def test_submitting_twice_with_one_idempotency_key_makes_one_job(client: Client) -> None:
    first, again = (client.submit("a", ["b"], label_token_ids=[5], idempotency_key="once") for _ in range(2))
    assert first.id == again.id


def test_an_upload_makes_the_same_job_as_submitting(client: Client) -> None:
    items = [f"item {n} é" for n in range(1_000)]
    options: dict[str, Any] = {"label_token_ids": [5, 6], "priority": "bulk", "metadata": {"run": "7"}}
    uploaded = client.wait(client.upload("a", iter(items), **options).id, 60)
    submitted = client.wait(client.submit("a", items, **options).id, 60)
    assert (uploaded.status, uploaded.total_items, uploaded.metadata) == ("succeeded", 1_000, {"run": "7"})
    assert uploaded.result is not None
    assert submitted.result is not None
    assert uploaded.result.scores == submitted.result.scores


def test_uploading_twice_with_one_idempotency_key_makes_one_job(client: Client) -> None:
    first, again = (client.upload([1], iter([[2], [3]]), label_token_ids=[5], idempotency_key="up") for _ in range(2))
    assert first.id == again.id


def test_an_upload_whose_items_fail_submits_nothing(client: Client) -> None:
    def items() -> Iterator[str]:
        yield from ("item " + "x" * 100 for _ in range(10_000))
        raise LookupError("no more")

    with pytest.raises(LookupError):
        client.upload("a", items(), label_token_ids=[5], idempotency_key="failing")
    wait_until(lambda: not _receiving(client), "it is given up")
    assert client.upload("a", ["b"], label_token_ids=[5], idempotency_key="failing").total_items == 1


def _receiving(client: Client) -> list[Any]:
    return list(client.jobs(status="receiving"))


def test_models_are_listed(client: Client) -> None:
    (model,) = client.models()
    assert (model.id, model.live_workers) == ("tiny", 1)


def test_an_error_of_the_service_is_raised_with_code_and_message(client: Client) -> None:
    with pytest.raises(ScorelineError, match="query") as refused:
        client.score("", ["a"], label_token_ids=[5])
    assert (refused.value.code, refused.value.status) == ("empty_query", 400)


def test_a_service_that_can_not_be_reached_is_a_clear_error() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}", retry_seconds=0) as client,
        pytest.raises(ScorelineError, match="no answer") as absent,
    ):
        client.models()
    assert (absent.value.code, absent.value.status) == ("unreachable", 0)


@pytest.fixture
def stranger() -> Iterator[str]:
    """Run a server that is not Scoreline."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Hello!</html>")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_of_another_server_is_a_clear_error(stranger: str) -> None:
    with Client(stranger) as client, pytest.raises(ScorelineError, match="something else"):
        client.models()


def test_labels_of_several_tokens_are_scored_by_the_sums_of_their_tokens(client: Client) -> None:
    labels = [" Paris.", " Tokyo and item"]
    texts = client.score(
        "The capital of", [" France is"], labels=labels, label_scoring="sequence", return_logprobs=True
    )
    ids = [client.tokenize(label) for label in labels]
    sequences = client.score(
        "The capital of",
        [" France is"],
        label_token_sequences=ids,
        label_scoring="sequence",
        label_normalization="tokens",
        return_logprobs=True,
    )
    assert texts.logprobs is not None
    assert sequences.logprobs is not None
    for whole, mean, tokens in zip(texts.logprobs[0], sequences.logprobs[0], ids, strict=True):
        assert whole == pytest.approx((mean or 0) * len(tokens), rel=1e-5)


def test_too_many_items_for_a_call_are_an_error_that_says_what_to_call(client: Client) -> None:
    for method in (client.score, client.likelihood):
        options: dict[str, Any] = {"label_token_ids": [5]} if method == client.score else {}
        with pytest.raises(RequestTooLarge, match=r"1000 items allowed here.*client\.upload"):
            method("The answer is", ["b"] * 1_001, **options)


def test_an_upload_is_refused_before_its_items_end(client: Client) -> None:
    def items() -> Iterator[Any]:
        yield 5
        while True:
            yield "an item " + "x" * 1_000

    with pytest.raises(ScorelineError, match=r"^items\[0\]") as refused:
        client.upload("a", items(), label_token_ids=[5])
    assert (refused.value.code, refused.value.status) == ("invalid_request", 400)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (5, r"^items\[2\] must be a string"),
        ("long " * 600, r"^query and items\[2\] make \d+ tokens"),
        ("x" * 3_000_000, r"^items\[2\] has"),
    ],
    ids=["a number", "too long for the model", "too long"],
)
def test_errors_of_an_upload_count_items_from_0_and_no_lines(client: Client, wrong: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        client.upload("a", iter(["b", "c", wrong, "d"]), label_token_ids=[5])
    assert raised.value.param == "items[2]"
    with pytest.raises(InvalidRequest, match=r"^query"):
        client.upload("", ["b"], label_token_ids=[5])
