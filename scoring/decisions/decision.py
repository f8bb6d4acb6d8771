"""A decision that is asked: its prompts, and what its answers need beside the scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoring.decisions.answers import form_of
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.encoding import DecisionPrompts
from scoring.decisions.prompts import Asked, PromptWriter
from scoring.decisions.questions import Question
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import TokenIds
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted

TOGETHER = (
    "the template of the model puts all questions into one prompt, so an answer depends on the other questions, too"
)
"""The warning about answers that depend on one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Questions about one state, as prompts."""

    prompts: DecisionPrompts
    asked: tuple[Asked, ...]
    temperatures: tuple[float, ...]  # of each question
    paths: tuple[str, ...]  # of each question in the request
    softcap: float | None = None  # of a decision head

    @property
    def labels(self) -> tuple[tuple[int, ...], ...]:
        """The ids of the labels of each row."""
        return tuple(labels for one in self.asked for labels in one.rows.labels)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (TOGETHER,) if self.prompts.are_one and len(self.asked) > 1 else ()

    def form(self, lengths: TokenIds) -> dict[str, Any]:
        """Return as JSON what the answers need. lengths: of the sequences of all rows, in tokens."""
        first_rows = np.cumsum([0, *(len(one.rows.behind) for one in self.asked)])[:-1]
        of_prompts = lengths[first_rows]
        tokens = of_prompts.max() if self.prompts.are_one else of_prompts.sum()
        softcap = {} if self.softcap is None else {"softcap": self.softcap}
        return form_of(self.asked, self.temperatures, int(tokens)) | softcap

    def worded(self, error: RequestError) -> RequestError:
        """Return an error of the rows in the words of who has asked the questions."""
        if error.param is None or not error.param.startswith(("items", "query")):
            return error
        path = "state" if error.param == "query" else "questions"
        if error.param.startswith("items["):
            row = int(error.param.removeprefix("items[").partition("]")[0])
            path = [path for path, one in zip(self.paths, self.asked, strict=True) for _ in one.rows.behind][row]
        message = error.message.replace(error.param, path).replace("query and items[0]", f"query and {path}")
        message = message.replace(f"query and {path} make", f"the prompt of {path} has")
        return RequestError(error.code, message, param=path, retry_after=error.retry_after, limit=error.limit)


@functools.lru_cache(maxsize=4)
def writer_of(checkpoint: DecisionCheckpoint, tokenizer: TextTokenizer) -> PromptWriter:
    """Return the writer of a checkpoint's prompts, which is made once in a process."""
    return PromptWriter(checkpoint, tokenizer)


def decide(
    checkpoint: DecisionCheckpoint,
    tokenizer: TextTokenizer,
    state: object,
    questions: Sequence[Question],
    paths: Sequence[str],
    stop_if_unwanted: Callable[[], None] = always_wanted,
) -> Decision:
    """Return the decision that a request asks for. paths: of the questions in the request. Raises RequestError."""
    checkpoint.check()
    if not isinstance(state, str | dict | list):
        raise RequestError(ErrorCode.INVALID_REQUEST, "state must be a text, an object or a list", param="state")
    writer = writer_of(checkpoint, tokenizer)
    asked = writer.ask(questions, paths)
    return Decision(
        prompts=writer.write(state, asked, stop_if_unwanted),
        asked=asked,
        temperatures=tuple(checkpoint.temperature(question.kind) for question in questions),
        paths=tuple(paths),
        softcap=None if checkpoint.head is None else checkpoint.head.softcap,
    )
