"""The prompts of a decision: one for each question, as transformers' package ``decision`` renders it.

What the prompts of a state have in common is found by rendering questions that are made up here. So where a prompt is
cut depends on the state and the template alone, never on the other questions, and no question changes another's bits.
Most templates write a text as it is: what stands around it is found once, and one question tells whether it holds.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scoring.decisions.checkpoint import DecisionCheckpoint, LabelRows, Tokens
from scoring.decisions.encoding import MARK, SPLIT, DecisionPrompts
from scoring.decisions.orders import Order
from scoring.decisions.questions import Fault, Kind, Option, Question, refuse
from scoring.decisions.rendering import RenderingError, rendering_of
from scoring.error_codes import ErrorCode, RequestError
from scoring.tokenizing.control_tokens import END, START, ControlTokens
from scoring.tokenizing.tokenization import TextTokenizer, always_wanted

MOST_CHARACTERS = 2**26
"""The most characters that all prompts of a request may have together, each with its state."""

_PROBE = "a state that is made up 0x7f3a"
"""A text that no template has."""

_MADE_UP = (
    Question("a", Kind.NOUL, "a", (Option("true", "a"), Option("false", "b"))),
    Question("b", Kind.CHOICE, "b", (Option("c", "d"), Option("e", "f"))),
    Question("c", Kind.SCORE, "c", (Option("0", "e"), Option("1", "g"), Option("2", "h")), ("e", "g", "h")),
)
"""Questions that begin differently, so that what their prompts have in common is what stands before a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the labels that answer it."""

    question: Question
    options: tuple[Option, ...]  # in the order of the prompt
    labels: tuple[str, ...]
    rows: LabelRows

    def in_order(self, order: Order) -> Asked:
        """Return the question with its options in another order, and the labels where they were."""
        return replace(self, options=tuple(self.options[place] for place in order))

    def shown(self) -> dict[str, Any]:
        """Return what a template sees of it."""
        return {
            "name": self.question.name,
            "type": self.question.kind.value,
            "instructions": self.question.instructions,
            "options": [text_of(option.value) for option in self.options],
            "labels": list(self.labels),
            "descriptions": [option.description for option in self.options],
        }


def text_of(value: str | bool) -> str:
    """Return an option as the prompt has it."""
    return value if isinstance(value, str) else str(value).lower()


class PromptWriter:
    """Writes the prompts of one checkpoint."""

    def __init__(self, checkpoint: DecisionCheckpoint, tokenizer: TextTokenizer) -> None:
        """Raises RequestError if no decision can be asked of the model."""
        checkpoint.check()
        self.checkpoint = checkpoint
        self._tokenizer = tokenizer
        self._generic = rendering_of(checkpoint.generic)
        self._template = rendering_of(checkpoint.template or checkpoint.chat.template or "")
        self._control = (
            ControlTokens(tokenizer, self._template.literals, (MARK, SPLIT)) if checkpoint.sanitizes else None
        )
        self._made_up = [self._shown_without_labels(question) for question in _MADE_UP]
        self._around = self._around_texts()

    def ask(self, questions: Sequence[Question], paths: Sequence[str]) -> tuple[Asked, ...]:
        """Return the questions with the labels of the model. Raises one RequestError for all faults."""
        found: list[Asked] = []
        faults: list[Fault] = []
        for question, path in zip(questions, paths, strict=True):
            asked = self._ask(question, path)
            if isinstance(asked, Fault):
                faults.append(asked)
            else:
                found.append(asked)
        refuse(faults)
        return tuple(found)

    def _ask(self, question: Question, path: str) -> Asked | Fault:
        labels = self.checkpoint.labels_of(path, question.kind, len(question.options))
        if isinstance(labels, Fault):
            return labels
        rows = self.checkpoint.rows_of(path, question.kind, labels, self._tokenizer)
        if isinstance(rows, Fault):
            return rows
        options = question.options
        if question.kind is Kind.NOUL and self.checkpoint.noul_options[0] == "false":
            options = options[::-1]
        return Asked(question, options, labels, rows)

    def _shown_without_labels(self, question: Question) -> dict[str, Any]:
        """Return what a template sees of a question, whether or not the model has labels that can answer it."""
        for count in range(len(question.options), 0, -1):
            labels = self.checkpoint.labels_of("", question.kind, count)
            if not isinstance(labels, Fault):
                return Asked(question, question.options[:count], labels, LabelRows.of([])).shown()
        raise AssertionError("a kind has a label")

    @property
    def asks_all_at_once(self) -> bool:
        """Whether one prompt has all questions."""
        return self.checkpoint.template is not None and "questions" in self._template.variables

    def write(
        self, state: object, asked: Sequence[Asked], stop_if_unwanted: Callable[[], None] = always_wanted
    ) -> DecisionPrompts:
        """Return the prompts of a request. Raises RequestError."""
        shown = [one.shown() for one in asked]
        if self._control is None:
            state, shown = _without_sentinels(state), _without_sentinels(shown)
        elif self.checkpoint.template is not None:
            state, shown = self._control.mark(state), self._control.mark(shown)
        try:
            if self.asks_all_at_once:
                return self._one_prompt(state, shown, asked)
            shared = self._shared(state)
            found = _Rendered()
            for one, of_one in zip(asked, shown, strict=True):
                stop_if_unwanted()
                text = self._until_marks(self._render(state, [of_one]))[0]
                found.add(text, shared, one.rows.behind)
        except RenderingError as error:
            message = f"the decision template of the model can't be used: {error}"
            raise RequestError(ErrorCode.INVALID_TEMPLATE, message, param="state") from None
        return DecisionPrompts(self._control, shared, tuple(found.texts), tuple(found.suffixes), frozenset(found.apart))

    def _shared(self, state: object) -> str:
        """Return what the prompts about a state have in common. Raises RenderingError."""
        if isinstance(state, str) and self._around is not None:
            marks_here = self._control is not None and self.checkpoint.template is None
            text = self._control.mark(state) if self._control is not None and marks_here else state
            found = text.join(self._around)
            if self._render(state, self._made_up[:1]).startswith(found):
                return found if self._control is None else _whole(found)
        found = _common_beginning([self._render(state, [one]) for one in self._made_up])
        return found if self._control is None else _whole(found)

    def _around_texts(self) -> tuple[str, str] | None:
        """Return what the prompts have in common before and behind a state that is a text; None: that differs."""
        if self.asks_all_at_once:
            return None
        try:
            found = _common_beginning([self._render(_PROBE, [one]) for one in self._made_up])
        except RenderingError:
            return None
        before, is_there, behind = found.partition(_PROBE)
        return (before, behind) if is_there and _PROBE not in behind else None

    def _one_prompt(self, state: object, shown: list[dict[str, Any]], asked: Sequence[Asked]) -> DecisionPrompts:
        texts = self._until_marks(self._render(state, shown))
        if len(texts) <= len(asked):
            raise RenderingError(f"it writes {len(texts) - 1} marks for {len(asked)} questions")
        behind = [
            text if not suffix else "" for text, one in zip(texts, asked, strict=False) for suffix in one.rows.behind
        ]
        suffixes = tuple(suffix for one in asked for suffix in one.rows.behind)
        return DecisionPrompts(self._control, "", tuple(behind), suffixes, are_one=True)

    def _until_marks(self, text: str) -> list[str]:
        """Split a prompt at the marks that the template wrote."""
        return re.split(re.escape(MARK) if self._control is None else rf"(?<!{START}){re.escape(MARK)}", text)

    def _render(self, state: object, shown: Sequence[Mapping[str, Any]]) -> str:
        content, options = "", sum(len(one["options"]) for one in shown)
        values: dict[str, Any] = {}
        if self.checkpoint.template is None:
            content = self._generic.render({"state": state, "question": shown[0]}, options)
            if self._control is not None:
                content = self._control.mark(content)
        else:
            values = {"state": state, "question": shown[0], "questions": shown}
        return self._template.render(
            {
                **self.checkpoint.chat.special_tokens,
                "messages": [{"role": "user", "content": content}],
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                "enable_thinking": False,
                **values,
            },
            options,
        )


class _Rendered:
    """The rows of prompts that were rendered one by one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.suffixes: list[Tokens] = []
        self.apart: list[int] = []
        self._characters = 0

    def add(self, text: str, shared: str, suffixes: Sequence[Tokens]) -> None:
        """Add the rows of a prompt. Raises RequestError if the prompts are too long together."""
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS:
            message = f"the prompts of the questions have more than {MOST_CHARACTERS} characters together"
            raise RequestError(ErrorCode.REQUEST_TOO_LARGE, message, param="questions", limit="decision_characters")
        begins = text.startswith(shared)
        for suffix in suffixes:
            if not begins:
                self.apart.append(len(self.texts))
            self.texts.append(text[len(shared) :] if begins else text)
            self.suffixes.append(suffix)


def _common_beginning(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # in between, all texts begin as both do
    ends = range(len(first) + 1)
    return first[: bisect_left(ends, True, key=lambda end: not last.startswith(first[:end])) - 1]


def _whole(text: str) -> str:
    """Return a marked text without the beginning of a control token that it ends with."""
    start = text.rfind(START)
    return text[:start] if start > text.rfind(END) else text


def _without_sentinels(value: Any) -> Any:
    """Return a value whose texts have no sentinels."""
    if isinstance(value, str):
        while MARK in value or SPLIT in value:  # what is left may be one again
            value = value.replace(MARK, "").replace(SPLIT, "")
        return value
    if isinstance(value, list):
        return [_without_sentinels(one) for one in value]
    if isinstance(value, dict):
        return {_without_sentinels(name): _without_sentinels(one) for name, one in value.items()}
    return value
