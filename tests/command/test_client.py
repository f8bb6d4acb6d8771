"""The client and ``scoreline score`` against a running service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from scoreline import Client, ScorelineError
from tests.command.running import ROOT, Up
from tests.services import free_port


def scoreline(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    command = [sys.executable, "-c", "from scoreline.command import main; main()", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_score_returns_a_row_an_item_and_a_column_a_label(client: Client) -> None:
    result = client.score("The capital", [" of France", " of Japan"], label_token_ids=[5, 6, 7], return_logprobs=True)
    assert [len(row) for row in result.scores] == [3, 3]
    assert result.logprobs is not None
    assert result.logits is None
    assert result.prompt_tokens > 0
    assert result.raw["object"] == "scoring"


def test_token_ids_are_scored_like_texts(client: Client) -> None:
    query, item = "The capital", " of France"
    by_text = client.score(query, [item], label_token_ids=[5])
    by_ids = client.score(client.tokenize(query), [client.tokenize(item)], label_token_ids=[5])
    assert by_text.scores == by_ids.scores


def test_a_job_is_submitted_awaited_read_and_deleted(client: Client) -> None:
    job = client.submit("a", ["b", "c"], label_token_ids=[5], metadata={"run": "7"})
    job = client.wait(job.id, 30)
    assert (job.status, job.ended, job.scored_items, job.metadata) == ("succeeded", True, 2, {"run": "7"})
    assert job.result is not None
    assert job.result.scores == client.score("a", ["b", "c"], label_token_ids=[5]).scores
    assert client.cancel(job.id).status == "succeeded"
    client.delete(job.id)
    with pytest.raises(ScorelineError) as missing:
        client.get(job.id)
    assert (missing.value.code, missing.value.status) == ("job_not_found", 404)


def test_scores_are_read_in_pages(client: Client) -> None:
    items = [f"item {n}" for n in range(25)]
    job = client.wait(client.submit("a", items, label_token_ids=[5]).id, 30)
    assert job.result is not None
    paged = list(client.scores(job.id, page_items=10))
    assert [item.index for item in paged] == list(range(25))
    assert [item.scores for item in paged] == job.result.scores


def test_submitting_again_with_one_key_is_one_job(client: Client) -> None:
    first, again = (client.submit("a", ["b"], label_token_ids=[5], idempotency_key="once") for _ in range(2))
    assert first.id == again.id


def test_models_are_listed(client: Client) -> None:
    (model,) = client.models()
    assert (model.id, model.live_workers) == ("tiny", 1)


def test_a_refused_request_says_why(client: Client) -> None:
    with pytest.raises(ScorelineError, match="query") as refused:
        client.score("", ["a"], label_token_ids=[5])
    assert (refused.value.code, refused.value.status) == ("empty_query", 400)


def test_an_absent_service_is_one_clear_error() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}") as client,
        pytest.raises(ScorelineError, match="no answer") as absent,
    ):
        client.models()
    assert (absent.value.code, absent.value.status) == ("unreachable", 0)


@pytest.fixture
def stranger() -> Iterator[str]:
    """A server that is not ours."""

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


def test_another_server_is_not_mistaken_for_the_service(stranger: str) -> None:
    with Client(stranger) as client, pytest.raises(ScorelineError, match="something else"):
        client.models()


def test_the_score_command_prints_a_table(shared_up: Up, client: Client) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "The capital", "--item", " of France", "--item", "",
                    "--label", "a", "--label", "b")  # fmt: skip
    assert run.returncode == 0, run.stderr
    expected = client.score("The capital", [" of France", ""], labels=["a", "b"]).scores
    heading, *rows = run.stdout.splitlines()
    assert heading.split() == ["#", "item", "“a”", "“b”"]
    assert rows[0].split() == ["0", "of", "France", *(f"{score:.4f}" for score in expected[0])]
    assert rows[1].split() == ["1", "(empty)", *(f"{score:.4f}" for score in expected[1])]


def test_the_score_command_prints_the_raw_response(shared_up: Up) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b", "--label", "c", "--json")
    assert json.loads(run.stdout)["object"] == "scoring"


def test_the_score_command_fails_with_one_line(shared_up: Up) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b", "--label", "two tokens at least")
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("scoreline: ")
