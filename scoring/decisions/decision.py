"""A decision that is asked: its prompts, and what its answers need beside the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoring.decisions.answers import form_of
from scoring.decisions.encoding import DecisionPrompts
from scoring.decisions.orders import MOST_PROMPTS, Order, orders_of
from scoring.decisions.prompts import Asked, PromptWriter
from scoring.decisions.questions import Kind, Question
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import TokenIds
from scoring.tokenizing.tokenization import always_wanted

TOGETHER = (
    "the template of the model puts all questions into one prompt, so an answer depends on the other questions, too"
)
"""The warning about answers that depend on one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Questions about one state, as prompts."""

    prompts: DecisionPrompts
    asked: tuple[Asked, ...]  # each question once for each of its orders
    orders: tuple[Sequence[Order], ...]  # of each question
    temperatures: tuple[float, ...]  # of each question
    paths: tuple[str, ...]  # of each of those that are asked: its place in the request
    softcap: float | None = None  # of a decision head

    @property
    def labels(self) -> tuple[tuple[int, ...], ...]:
        """The ids of the labels of each row."""
        return tuple(labels for one in self.asked for labels in one.rows.labels)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (TOGETHER,) if self.prompts.are_one and len(self.orders) > 1 else ()

    def form(self, lengths: TokenIds) -> dict[str, Any]:
        """Return as JSON what the answers need. lengths: of the sequences of all rows, in tokens."""
        first_rows = np.cumsum([0, *(len(one.rows.behind) for one in self.asked)])[:-1]
        of_prompts = lengths[first_rows]
        tokens = of_prompts.max() if self.prompts.are_one else of_prompts.sum()
        softcap = {} if self.softcap is None else {"softcap": self.softcap}
        firsts = np.cumsum([0, *map(len, self.orders)])[:-1].tolist()
        questions = [self.asked[first] for first in firsts]
        return form_of(questions, self.orders, self.temperatures, int(tokens)) | softcap

    def worded(self, error: RequestError) -> RequestError:
        """Return an error of the rows in the words of who has asked the questions."""
        field, _, rest = (error.param or "").partition("[")
        if error.param is None or field not in ("items", "query", "label_token_ids"):
            return error
        path = "state" if field == "query" else "questions"
        if rest:
            row = int(rest.partition("]")[0])
            path = [path for path, one in zip(self.paths, self.asked, strict=True) for _ in one.rows.behind][row]
        called = "prompts of the questions" if error.param == "items" else path
        message = error.message.replace(error.param, called).replace("query and items[0]", f"query and {path}")
        message = message.replace(f"query and {path} make", f"the prompt of {path} has")
        return RequestError(error.code, message, param=path, retry_after=error.retry_after, limit=error.limit)


def decide(
    writer: PromptWriter,
    state: object,
    questions: Sequence[Question],
    paths: Sequence[str],
    stop_if_unwanted: Callable[[], None] = always_wanted,
    permute: int | None = 1,
) -> Decision:
    """Return the decision that a request asks of the writer's model. paths: of the questions in the request.

    permute: in how many orders the options of a choice are asked, or None for as many as it has. Raises RequestError.
    """
    if not isinstance(state, str | dict | list):
        raise RequestError(ErrorCode.INVALID_REQUEST, "state must be a text, an object or a list", param="state")
    asked = writer.ask(questions, paths)
    if permute != 1 and writer.asks_all_at_once:
        message = "the template of the model puts all questions into one prompt, which has one order of the options"
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, message, param="permute")
    orders = [
        orders_of(len(one.options), permute if one.question.kind is Kind.CHOICE else 1, path)
        for one, path in zip(asked, paths, strict=True)
    ]
    prompts = sum(map(len, orders))
    if permute != 1 and prompts > MOST_PROMPTS:
        message = (
            f"the questions have {prompts:,} prompts in all orders; {MOST_PROMPTS:,} are allowed: ask fewer at a time"
        )
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, param="permute", limit="decision_prompts")
    checkpoint = writer.checkpoint
    in_orders = tuple(one.in_order(order) for one, of_one in zip(asked, orders, strict=True) for order in of_one)
    stop_if_unwanted()
    return Decision(
        prompts=writer.write(state, in_orders, stop_if_unwanted),
        asked=in_orders,
        orders=tuple(orders),
        temperatures=tuple(checkpoint.temperature(question.kind) for question in questions),
        paths=tuple(path for path, of_one in zip(paths, orders, strict=True) for _ in of_one),
        softcap=None if checkpoint.head is None else checkpoint.head.softcap,
    )
