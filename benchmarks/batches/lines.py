"""The lines of the batch that is measured, and what each must be answered. The same number makes the same line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

Answer = TypeVar("Answer")

Error = tuple[int, str, str | None]
"""The status, the code and the param of an error."""

QUERY_TOKENS, ITEM_TOKENS = 48, 12
FIRST_ID, LAST_ID = 300, 1_500
LABELS = (311, 315)
BROKEN_EVERY = 100

BROKEN: tuple[tuple[str, Error], ...] = (
    ("no JSON", (400, "invalid_json", None)),
    ("no object", (400, "invalid_request", None)),
    ("no custom_id", (400, "invalid_request", "custom_id")),
    ("a number as custom_id", (400, "invalid_request", "custom_id")),
    ("another method", (400, "invalid_request", "method")),
    ("another url", (400, "invalid_request", "url")),
    ("no body", (400, "invalid_request", "body")),
    ("no query", (400, "missing_query", "query")),
    ("a label past the vocabulary", (400, "token_id_exceeds_vocab", "label_token_ids[0]")),
    ("the custom_id of an earlier line", (400, "invalid_request", "custom_id")),
)
"""The ways in which lines are broken, and the error that each gets."""


@dataclass(frozen=True)
class Lines:
    """Requests over some queries in a random order, of which every hundredth is broken."""

    count: int
    queries: int
    endpoint: ClassVar[str] = "/v1/score"

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line with its line end."""
        return (self._line(number) for number in range(self.count))

    def error(self, number: int) -> Error | None:
        """Return the error of a line; None if it is good."""
        return None if number % BROKEN_EVERY != BROKEN_EVERY // 2 else BROKEN[_kind(number)][1]

    def custom_id(self, number: int) -> str:
        """Return the ``custom_id`` of a good line."""
        return f"line-{number}"

    def tokens(self, number: int) -> tuple[list[int], list[int]]:
        """Return the token ids of the query and of the item of a line."""
        chance = random.Random(number)
        of_query = random.Random(f"query {chance.randrange(self.queries)}")
        query = [of_query.randint(FIRST_ID, LAST_ID) for _ in range(QUERY_TOKENS)]
        return query, [chance.randint(FIRST_ID, LAST_ID) for _ in range(ITEM_TOKENS)]

    def body(self, number: int) -> dict[str, Any]:
        """Return the request of a good line."""
        query, item = self.tokens(number)
        return {"query": query, "items": [item], "label_token_ids": list(LABELS), "return_logits": True}

    def is_right(self, number: int, answer: dict[str, Any]) -> bool:
        """Return whether this is the answer to a good line."""
        return bool(answer["logits"] == [logits(*self.tokens(number), len(LABELS))])

    def cached_tokens(self, answer: dict[str, Any]) -> int:
        """Return how many tokens of a line the worker remembered."""
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def _line(self, number: int) -> bytes:
        body = self.body(number)
        line: dict[str, Any] = {
            "custom_id": self.custom_id(number),
            "method": "POST",
            "url": self.endpoint,
            "body": body,
        }
        if self.error(number) is not None:
            match BROKEN[_kind(number)][0]:
                case "no JSON":
                    return b'{"custom_id": \n'
                case "no object":
                    return b'["an", "array"]\n'
                case "no custom_id":
                    del line["custom_id"]
                case "a number as custom_id":
                    line["custom_id"] = number
                case "another method":
                    line["method"] = "GET"
                case "another url":
                    line["url"] = "/v1/rerank"
                case "no body":
                    line["body"] = None
                case "no query":
                    del body["query"]
                case "a label past the vocabulary":
                    body["label_token_ids"] = [10**6]
                case _:
                    line["custom_id"] = self.custom_id(number - 1)
        return json.dumps(line).encode() + b"\n"


class DecisionLines(Lines):
    """Questions about some states in a random order, of which none is broken."""

    endpoint = "/v1/systemone"

    def error(self, number: int) -> Error | None:
        """Return None: every line is good."""
        return None

    def body(self, number: int) -> dict[str, Any]:
        """Return the request of a good line."""
        query, item = self.tokens(number)
        asked = {"type": "choice", "instructions": _words(item), "criteria": {"one": None, "two": None, "three": None}}
        return {"model": "demonstration", "state": _words(query), "questions": {"q": asked}}

    def is_right(self, number: int, answer: dict[str, Any]) -> bool:
        """Return whether this is an answer to a good line. Whether it is that of this line, the service must say."""
        probabilities = answer["answers"]["q"]["probabilities"]
        return list(probabilities) == ["one", "two", "three"] and abs(sum(probabilities.values()) - 1.0) < 1e-6

    def cached_tokens(self, answer: dict[str, Any]) -> int:
        """Return how many tokens of a line the worker remembered."""
        return int(answer["usage"]["cached_tokens"])


KINDS: dict[str, type[Lines]] = {"scores": Lines, "decisions": DecisionLines}


def logits(query: list[int], item: list[int], columns: int) -> list[float]:
    """Return what the worker of this benchmark computes: numbers that float32 holds exactly, one for each label."""
    total = (sum(query) + 3 * sum(item)) % 1_009
    return [float(total + place * (1 + total % 31)) for place in range(columns)]


def _words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def _kind(number: int) -> int:
    return number // BROKEN_EVERY % len(BROKEN)


def paired(numbers: Iterable[int], answers: Iterable[Answer]) -> Iterator[tuple[int | None, Answer | None]]:
    """Yield each number of a line with its answer. None stands for an answer that is missing, or for one too many."""
    return zip_longest(numbers, answers)
