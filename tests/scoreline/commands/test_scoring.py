"""The commands that use a running service."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from scoreline import Client
from scoreline.terminal.charts import WIDTH, likelihood_chart
from tests.scoreline.running import Up, scoreline


def test_the_score_command_prints_a_table(shared_up: Up, client: Client) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "The capital", "--item", " of France", "--item", "",
                    "--label", "a", "--label", "b")  # fmt: skip
    assert run.returncode == 0, run.stderr
    expected = client.score("The capital", [" of France", ""], labels=["a", "b"])
    cells = [
        [*(f"{score:.4f}" for score in scores), f"{mass:.2g}"]
        for scores, mass in zip(expected.scores, expected.label_mass or [], strict=True)
    ]
    heading, *rows = run.stdout.splitlines()
    assert heading.split() == ["#", "item", "“a”", "“b”", "label", "mass"]
    assert rows[0].split() == ["0", "of", "France", *cells[0]]
    assert rows[1].split() == ["1", "(empty)", *cells[1]]


def test_the_score_command_prints_the_raw_response(shared_up: Up) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b", "--label", "c", "--json")
    assert json.loads(run.stdout)["object"] == "scoring"


def test_the_score_command_fails_with_one_line(shared_up: Up) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b", "--label", "two tokens at least")
    assert run.returncode == 4
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("scoreline: ")


def test_labels_of_several_tokens_are_scored_as_the_options_say(shared_up: Up, client: Client) -> None:
    labels = [" a wonderful evening", " dreadful"]
    run = scoreline("score", "--url", shared_up.url, "--query", "We had", "--item", "", "--item", " then",
                    "--label", labels[0], "--label", labels[1], "--label-scoring", "sequence",
                    "--label-normalization", "tokens", "--json")  # fmt: skip
    assert run.returncode == 0, run.stderr
    expected = client.score(
        "We had", ["", " then"], labels=labels, label_scoring="sequence", label_normalization="tokens"
    )
    assert json.loads(run.stdout)["scores"] == expected.scores
    refused = scoreline("score", "--url", shared_up.url, "--query", "We had", "--item", "", "--label", labels[0])
    assert 'give label_scoring "sequence" for labels of several tokens' in refused.stderr


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_the_submit_command_prints_the_id_of_its_job(
    shared_up: Up, client: Client, tmp_path: Path, source: str
) -> None:
    lines = "".join(json.dumps(item) + "\n" for item in (" of France", "", " of Japan\n"))
    (tmp_path / "items").write_text(lines)
    name = str(tmp_path / "items") if source == "file" else "-"
    run = scoreline("submit", "--url", shared_up.url, "--query", "The capital", "--items", name,
                    "--label", "a", "--label", "b", given=lines if source == "stdin" else "")  # fmt: skip
    assert run.returncode == 0, run.stderr
    job = client.wait(run.stdout.strip(), 30)
    expected = client.score("The capital", [" of France", "", " of Japan\n"], labels=["a", "b"])
    assert job.result is not None
    assert job.result.scores == expected.scores


def test_the_submit_command_fails_with_one_line(shared_up: Up) -> None:
    arguments = ("submit", "--url", shared_up.url, "--query", "a", "--items", "-", "--label", "b")
    for given, message in (('"good"\nbad\n', "line 2"), ("5\n", "items[0]")):
        run = scoreline(*arguments, given=given)
        assert (run.returncode, run.stdout) == (4, "")
        (line,) = run.stderr.splitlines()
        assert line.startswith("scoreline: ")
        assert message in line


def test_the_version_is_printed() -> None:
    run = scoreline("--version")
    assert (run.returncode, run.stdout.strip()) == (0, f"scoreline {version('scoreline')}")


def test_scores_are_drawn_as_bars(shared_up: Up, client: Client) -> None:
    run = scoreline("score", "--query", "The capital", "--item", " of France", "--item", " of Japan", "--label", "a",
                    "--label", "b", "--softmax", "--chart", SCORELINE_URL=shared_up.url)  # fmt: skip
    assert run.returncode == 0, run.stderr
    scores = client.score("The capital", [" of France", " of Japan"], labels=["a", "b"], apply_softmax=True).scores
    flat = [score for row in scores for score in row]
    lines = run.stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [f"{score:.4f}" for score in flat]
    drawn = [sum(character in "█▏▎▍▌▋▊▉" for character in line) for line in lines]
    assert max(drawn) == WIDTH
    assert all(abs(count - WIDTH * score / max(flat)) <= 1 for count, score in zip(drawn, flat, strict=True))


def test_a_template_needs_no_labels(shared_up: Up, client: Client) -> None:
    run = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b", "--template", "yes-no")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0].split() == ["#", "item", "“", "yes”", "“", "no”", "label", "mass"]
    nothing = scoreline("score", "--url", shared_up.url, "--query", "a", "--item", "b")
    assert (nothing.returncode, nothing.stdout) == (2, "")


def test_likelihoods_are_printed_as_a_table(shared_up: Up, client: Client) -> None:
    items = [" of France", " of Japan is a", ""]
    arguments = ("likelihood", "--url", shared_up.url, "--query", "The capital")
    run = scoreline(*arguments, "--item", items[0], "--items", "-", "--token-logprobs",
                    given="".join(json.dumps(item) + "\n" for item in items[1:]), COLUMNS="200")  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = client.likelihood("The capital", items, return_token_logprobs=True)
    assert found.token_logprobs is not None
    rows = run.stdout.splitlines()[1:]
    assert [row.split() for row in rows] == [
        [str(n), *(items[n].split() or ["(empty)"]), f"{logprob:.4f}", f"{logprob / max(1, tokens):.4f}", str(tokens),
         "yes" if greedy else "no", *(f"{one:.4f}" for one in of_tokens if one is not None)]
        for n, (logprob, tokens, greedy, of_tokens) in enumerate(
            zip(found.logprob, found.num_tokens, found.is_greedy, found.token_logprobs, strict=True)
        ) if logprob is not None
    ]  # fmt: skip
    raw = json.loads(scoreline(*arguments, "--item", items[0], "--json").stdout)
    assert (raw["object"], raw["logprob"]) == ("likelihood", found.logprob[:1])


def test_likelihoods_are_drawn_beside_the_most_probable_item() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(likelihood_chart(["likely", "half", "never"], [-2.0, -2.0 - math.log(2), None]))
    drawn = [sum(character in "█▏▎▍▌▋▊▉" for character in line) for line in captured.get().splitlines()]
    assert drawn == [WIDTH, WIDTH // 2, 0]
    assert captured.get().splitlines()[2].split()[-1] == "-inf"


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ("", 2, "give --item TEXT, or --items FILE"),
        ('"a"\n\n5\n', 4, "line 3 of --items is no text in quotes"),
    ],
)
def test_items_that_are_no_texts_are_refused_before_the_service_is_asked(given: str, code: int, says: str) -> None:
    run = scoreline("likelihood", "--query", "a", "--items", "-", "--url", "http://127.0.0.1:1", given=given)
    assert (run.returncode, run.stdout) == (code, "")
    assert says in run.stderr


def test_documents_are_ranked_from_the_command_line_and_from_a_file(shared_up: Up, client: Client) -> None:
    texts = ["London", "Paris is a city", "Tokyo"]
    arguments = ("rerank", "--url", shared_up.url, "--query", "What is in England", "--top-n", "2")
    given = "".join(json.dumps(text) + "\n" for text in texts)
    expected = client.rerank("What is in England", texts, top_n=2)
    one = scoreline(*arguments, *(word for text in texts for word in ("--document", text)))
    rows = [line.rstrip().split(maxsplit=2) for line in one.stdout.splitlines()[1:]]
    assert rows == [[f"{best.relevance_score:.4f}", str(best.index), texts[best.index]] for best in expected.results]
    other = scoreline(*arguments, "--documents", "-", "--json", given=given)
    assert [result["index"] for result in json.loads(other.stdout)["results"]] == [int(row[1]) for row in rows]


def test_an_error_in_the_items_names_the_line_of_the_file(shared_up: Up) -> None:
    arguments = ("submit", "--url", shared_up.url, "--query", "a", "--items", "-", "--label", "b")
    for given, message in (
        ('"good"\n\n\n5\n', "line 4 of the items: items[1] must be a string"),
        ('"good"\n' + json.dumps("long " * 600) + "\n", "line 2 of the items: query and items[1] make"),
        ('"good"\n"' + "x" * 1_100_000 + '"\n', "line 2 of the items: items[1] has more than"),
    ):
        run = scoreline(*arguments, given=given)
        assert (run.returncode, run.stdout) == (4, "")
        assert run.stderr.startswith(f"scoreline: {message}")
    run = scoreline(*arguments[:-1], "several tokens", given='"good"\n')
    assert run.stderr.startswith("scoreline: label 'several tokens' is ")
