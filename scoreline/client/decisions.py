"""Questions about a state, and their answers, as the client takes and returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scoreline.client.reading import read_fields
from scoreline.client.results import Provenance
from scoreline.client.tables import Short

State = str | Mapping[str, Any] | Sequence[Any]
"""What questions are about: a text, or anything that JSON can say."""

Content = State | None
"""What a question or an option says."""


@dataclass(frozen=True, slots=True)
class YesNo:
    """A question whose answer is the probability of yes."""

    instructions: Content = None  # the question
    yes: Content = None  # what yes means
    no: Content = None  # what no means

    def body(self) -> dict[str, Any]:
        """Return the question as the service takes it."""
        criteria = None if self.yes is None and self.no is None else {"true": self.yes, "false": self.no}
        return _without_nothing(type="noul", instructions=self.instructions, criteria=criteria)


@dataclass(frozen=True, slots=True)
class Choice:
    """A question whose answer is one of several options."""

    instructions: Content  # the question
    options: Sequence[str] | Mapping[str, Content]  # their names, or what each means by its name

    def body(self) -> dict[str, Any]:
        """Return the question as the service takes it."""
        if isinstance(self.options, Mapping):
            options = self.options
        else:
            names = _listed(self.options, "the options of a choice")
            options = dict.fromkeys(names)
            if len(options) < len(names):
                raise ValueError(f"the options of a choice must differ, not {names}")
        return _without_nothing(type="choice", instructions=self.instructions, criteria=dict(options))


@dataclass(frozen=True, slots=True)
class Scale:
    """A question whose answer is a level of a scale."""

    instructions: Content  # the question
    levels: Sequence[Content]  # what each level means, from 0 on

    def body(self) -> dict[str, Any]:
        """Return the question as the service takes it."""
        return _without_nothing(type="score", instructions=self.instructions, criteria=_listed(self.levels, "levels"))


Question = YesNo | Choice | Scale
Questions = Mapping[str, Question | Mapping[str, Any]]
"""Questions by their names: each an object of one of the three kinds, or a mapping as the service takes it."""


def bodies_of(questions: Questions) -> dict[str, Any]:
    """Return questions as the service takes them. Raises TypeError for what is no question."""
    if not isinstance(questions, Mapping):
        raise TypeError(f"questions must be a mapping with a name for each, not a {type(questions).__name__}")
    for name, one in questions.items():
        if not isinstance(one, Mapping | YesNo | Choice | Scale):
            raise TypeError(f"question {name!r} must be a YesNo, Choice or Scale, not a {type(one).__name__}")
    return {name: one if isinstance(one, Mapping) else one.body() for name, one in questions.items()}


def _listed(given: Sequence[Any], what: str) -> list[Any]:
    """Return what was given as a list. A text would be taken letter by letter."""
    if isinstance(given, str):
        raise TypeError(f"{what} must be a list, not a text")
    return list(given)


def _without_nothing(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Short):
    """The answer to one question."""

    type: Literal["noul", "choice", "score"]  # of the question: yes or no, one of several options, or a level
    value: Any  # the option; or the mean level; or the probability of yes
    confidence: float | None  # how sure it is, from 0 to 1; None for yes or no, where the probability says it
    probabilities: Mapping[Any, float] | None  # of each option or level; None for yes or no
    legend: Mapping[str, Any] | None  # what each level means; None for other kinds
    label_mass: float | None  # the labels' share of the vocabulary; tiny: the prompt is wrong; None: a decision head
    argmax_is_label: bool | None  # whether the most probable of all tokens is a label; None if it is not known
    orders: int | None  # in how many orders its options were asked; None without ``permute``
    spread: float | None  # the largest difference between two orders in the probability of an option
    flips: float | None  # the share of the orders whose most probable option is another one

    @classmethod
    def read(cls, raw: Mapping[str, Any], diagnostics: Mapping[str, Any]) -> Answer:
        """Read an answer, and what the service says of it."""
        return cls(
            type=raw["type"],
            value=raw[raw["type"]],
            confidence=raw.get("confidence"),
            probabilities=raw.get("probabilities"),
            legend=raw.get("legend"),
            label_mass=diagnostics["label_mass"],
            argmax_is_label=diagnostics["argmax_is_label"],
            **{name: diagnostics.get(name) for name in ("orders", "spread", "flips")},
        )


@dataclass(frozen=True, slots=True, repr=False)
class Decision(Short):
    """The answers to the questions about one state."""

    id: str  # of the job that computed them
    model: str  # the name of the model that answered
    answers: Mapping[str, Answer]  # by the names of the questions
    prompt_tokens: int  # the lengths of all prompts, summed
    cached_tokens: int  # prompt tokens that did not have to be computed
    warnings: list[str]  # what is odd about the request, in words
    provenance: list[Provenance | None] | None  # what computed them; None unless asked for
    receipt: str | None  # a signed statement of request and answer; None unless asked for
    judged: (
        Mapping[str, Mapping[str, Any]] | None
    )  # of questions with a calibration or threshold: what these make of it
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    def __getitem__(self, name: str) -> Any:
        """Return the value of the answer to a question."""
        return self.answers[name].value

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Decision:
        """Read an answer of ``/v1/systemone`` or ``/v1/decisions``, or the ``result`` of a job of a decision.

        An answer of ``/v1/decisions`` without a name has its number instead, as a text.
        """
        usage, diagnostics, answers = raw["usage"], raw["diagnostics"], raw["answers"]
        if isinstance(answers, list):
            names = [one["name"] or str(number) for number, one in enumerate(answers)]
            diagnostics = dict(zip(names, diagnostics, strict=True))
            answers = dict(zip(names, map(_in_our_words, answers), strict=True))
        return read_fields(
            cls,
            raw,
            answers={name: Answer.read(one, diagnostics[name]) for name, one in answers.items()},
            prompt_tokens=usage["input_tokens"],
            cached_tokens=usage.get("input_tokens_details", usage)["cached_tokens"],
            provenance=Provenance.read_all(raw),
            receipt=raw.get("receipt"),
            optional=frozenset({"judged"}),
        )


def _in_our_words(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer of ``/v1/decisions`` as ``/v1/systemone`` has it."""
    if raw["type"] == "predicate":
        return {"type": "noul", "noul": raw["probability"]}
    is_scale = raw["type"] == "score"
    shares = {str(one["value"]) if is_scale else one["value"]: one["probability"] for one in raw["probabilities"]}
    legend = {str(one["value"]): one["label"] for one in raw["probabilities"]} if is_scale else None
    return {**raw, "probabilities": shares, "legend": legend}
