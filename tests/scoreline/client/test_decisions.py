"""Decisions by the client: calls, jobs, many states, dry runs and batches have the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scoreline import AsyncClient, Choice, Client, Decision, InvalidRequest, Scale, YesNo
from scoreline.client.decisions import Questions
from tests.scoreline.running import Up

STATE = "I saw London. This movie was great!"
QUESTIONS: Questions = {
    "great": YesNo("Is it great?", yes="It is.", no="It is not."),
    "town": Choice("Which one?", {"Paris": "France", "London": None}),
    "bad": Scale("How bad?", ["good", "bad", "negative"]),
}
AS_DICTS: dict[str, dict[str, Any]] = {
    "great": {"type": "noul", "instructions": "Is it great?", "criteria": {"true": "It is.", "false": "It is not."}},
    "town": {"type": "choice", "instructions": "Which one?", "criteria": {"Paris": "France", "London": None}},
    "bad": {"type": "score", "instructions": "How bad?", "criteria": ["good", "bad", "negative"]},
}
STATES: list[Any] = [{"n": n, "text": STATE} if n % 2 else f"{STATE} {n}" for n in range(70)]


def test_a_decision_has_typed_answers_and_what_the_service_says_of_them(client: Client) -> None:
    decision = client.decide(STATE, QUESTIONS, return_provenance=True)
    raw = decision.raw["answers"]
    assert decision["great"] == decision.answers["great"].value == raw["great"]["noul"]
    assert (decision.answers["great"].confidence, decision.answers["great"].probabilities) == (None, None)
    town = decision.answers["town"]
    assert (town.type, town.value, town.confidence) == ("choice", raw["town"]["choice"], raw["town"]["confidence"])
    assert town.probabilities == raw["town"]["probabilities"]
    bad = decision.answers["bad"]
    assert (bad.value, bad.legend) == (raw["bad"]["score"], {"0": "good", "1": "bad", "2": "negative"})
    diagnostics = decision.raw["diagnostics"]
    assert [one.label_mass for one in decision.answers.values()] == [
        diagnostics[name]["label_mass"] for name in QUESTIONS
    ]
    assert decision.prompt_tokens == decision.raw["usage"]["input_tokens"] > decision.cached_tokens >= 0
    assert decision.provenance
    assert client.decide(STATE, AS_DICTS).answers == decision.answers


def test_choices_are_asked_in_several_orders_and_signed(client: Client) -> None:
    once, permuted = (client.decide(STATE, QUESTIONS, permute=one, return_receipt=True) for one in (None, "balanced"))
    town = permuted.answers["town"]
    assert (town.orders, once.answers["town"].orders) == (2, None)
    assert town.spread is not None
    assert 0 < town.spread <= 1
    assert town.flips in (0, 0.5)
    assert permuted.answers["bad"] == once.answers["bad"]
    assert permuted.receipt is not None
    assert permuted.receipt != once.receipt
    (among,) = client.decide_many([STATE], QUESTIONS, permute="balanced")
    assert among.answers == permuted.answers
    planned = client.dry_run_decision(STATE, QUESTIONS, permute="balanced")
    assert planned.prompt_tokens == permuted.prompt_tokens > once.prompt_tokens


def test_a_job_has_the_answers_of_the_call(client: Client) -> None:
    state = {"text": STATE, "stars": 5}
    job = client.wait(client.submit_decision(state, QUESTIONS, metadata={"run": "7"}, priority="bulk"))
    assert (job.kind, job.metadata, job.result, job.likelihoods) == ("decision", {"run": "7"}, None, None)
    assert job.decision is not None
    assert job.decision.answers == client.decide(state, QUESTIONS).answers
    assert client.dry_run_decision(state, QUESTIONS).prompt_tokens == job.prompt_tokens


def test_many_states_are_decided_in_their_order_with_few_requests(client: Client, shared_up: Up) -> None:
    found = list(client.decide_many(STATES, QUESTIONS))
    assert [one.answers for one in found[::23]] == [client.decide(state, QUESTIONS).answers for state in STATES[::23]]
    assert len({one.id for one in found}) == len(STATES)

    async def decided() -> list[Decision]:
        async def states() -> AsyncIterator[Any]:
            for state in STATES:
                yield state

        async with AsyncClient(shared_up.url) as client:
            return [one async for one in client.decide_many(states(), QUESTIONS)]

    assert [one.answers for one in asyncio.run(decided())] == [one.answers for one in found]


def test_a_state_that_fails_is_yielded_in_its_place(client: Client) -> None:
    found = list(client.decide_many([STATE, "long " * 20_000, STATE], QUESTIONS, errors="yield"))
    assert [type(one) for one in found] == [Decision, InvalidRequest, Decision]
    with pytest.raises(TypeError, match="decide\\(\\) takes one"):
        client.decide_many(STATE, QUESTIONS)
    with pytest.raises(InvalidRequest, match="town"):
        client.decide(STATE, {"town": Choice("Which one?", [])})


@pytest.mark.parametrize(
    ("questions", "reason"),
    [
        ([YesNo("Is it great?")], "questions must be a mapping"),
        ({"great": "Is it great?"}, "question 'great' must be"),
        ({"town": Choice("Which one?", "Paris")}, "options of a choice must be a list"),
        ({"bad": Scale("How bad?", "good")}, "levels must be a list"),
    ],
)
def test_what_is_no_question_is_told_before_anything_is_sent(client: Client, questions: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        client.decide(STATE, questions)


def test_options_that_are_equal_are_refused_and_not_asked_as_one(client: Client) -> None:
    with pytest.raises(ValueError, match="must differ"):
        client.decide(STATE, {"town": Choice("Which one?", ["Paris", "London", "Paris"])})


def test_a_batch_has_the_answers_of_both_doors_in_the_same_words(client: Client) -> None:
    expected = client.decide(STATE, QUESTIONS).answers
    batch = client.batch({"a": {"state": STATE, "questions": AS_DICTS}}, endpoint="/v1/systemone")
    (line,) = client.batch_results(client.wait_batch(batch, 60))
    assert line.decision is not None
    assert line.decision.answers == expected
    choices = [{"value": "Paris", "description": "France"}, {"value": True}]
    levels = [{"label": "good"}, {"label": "bad"}]
    asked: list[dict[str, Any]] = [
        {"type": "predicate", "name": "great", "instructions": "Is it great?"},
        {"type": "choice", "instructions": "Which one?", "choices": choices},
        {"type": "score", "instructions": "How bad?", "levels": levels},
    ]
    batch = client.batch({"a": {"input": STATE, "questions": asked}}, endpoint="/v1/decisions")
    (line,) = client.batch_results(client.wait_batch(batch, 60))
    assert line.decision is not None
    found = line.decision.answers
    assert [(name, one.type) for name, one in found.items()] == [("great", "noul"), ("1", "choice"), ("2", "score")]
    assert found["great"].value == client.decide(STATE, {"a": YesNo("Is it great?")})["a"]
    assert set(found["1"].probabilities or ()) == {"Paris", True}
    assert (found["2"].legend, set(found["2"].probabilities or ())) == ({"0": "good", "1": "bad"}, {"0", "1"})
