"""The results of the requests of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scoreline.client.decisions import Decision
from scoreline.client.errors import ScorelineError, error_for
from scoreline.client.results import LikelihoodResult, Ranking, ScoreResult
from scoreline.client.tables import NOTHING_ASKED, Asked


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one request of a batch."""

    custom_id: str | None  # None if the line was so wrong that it could not be read
    number: int  # the place of the line in the file, counted from 0
    scores: ScoreResult | None  # of a request to /v1/score that was answered
    likelihoods: LikelihoodResult | None  # of a request to /v1/likelihood that was answered
    ranking: Ranking | None  # of a request to /v1/rerank that was answered
    completion: Mapping[str, Any] | None  # of a request to /v1/completions: the answer as it came
    decision: Decision | None  # of a request to /v1/systemone or /v1/decisions that was answered
    error: ScorelineError | None  # why it was not answered
    raw: Mapping[str, Any] = field(repr=False)  # the whole line

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Asked = NOTHING_ASKED) -> BatchResult:
        """Read a line of an output file or of an error file."""
        response, error = raw["response"], raw["error"]
        scores = likelihoods = ranking = completion = decision = failure = None
        if response is None:
            failure = error_for(error["code"], error["message"])
        elif response["status_code"] != 200:
            why = response["body"]["error"]
            failure = error_for(
                why["code"],
                why["message"],
                response["status_code"],
                param=why.get("param"),
                request_id=response["request_id"],
            )
        elif "answers" in response["body"]:
            decision = Decision.read(response["body"])
        elif response["body"]["object"] == "scoring":
            scores = ScoreResult.read(response["body"], asked)
        elif response["body"]["object"] == "likelihood":
            likelihoods = LikelihoodResult.read(response["body"], asked)
        elif response["body"]["object"] == "text_completion":
            completion = response["body"]
        else:
            ranking = Ranking.read(response["body"], asked)
        of_kind = (scores, likelihoods, ranking, completion, decision)
        return cls(raw["custom_id"], number_of_line(raw), *of_kind, failure, raw)


def number_of_line(raw: Mapping[str, Any]) -> int:
    """Return the place of an answer's request in its file, with which the id of the answer ends."""
    return int(raw["id"].rpartition("_")[2])
