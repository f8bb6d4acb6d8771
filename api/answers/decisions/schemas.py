"""The schemas of decisions in the OpenAPI document: in the words of System One, and in those of OpenAI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.answers.items.request_schemas import CallFields, JobFields, OriginFields
from api.answers.items.result_schemas import Shape, WithOrigin

Content = str | dict[str, Any] | list[Any]
Share = Annotated[float, Field(ge=0, le=1)]


class Part(BaseModel):
    """A part of what was asked. It may have no other fields."""

    model_config = ConfigDict(extra="forbid")


class NoulCriteria(Part):
    """What yes and no mean."""

    true: Content | None = None
    false: Content | None = None


class NoulQuestion(Part):
    """A question whose answer is yes or no."""

    type: Literal["noul"]
    instructions: Content | None = Field(None, description="the question")
    criteria: NoulCriteria | None = None


class ChoiceQuestion(Part):
    """A question whose answer is one of several options."""

    type: Literal["choice"]
    instructions: Content | None = Field(None, description="the question")
    criteria: Annotated[dict[str, Content | None], Field(min_length=1, max_length=255)] = Field(
        description="the options, each with a description or null"
    )


class ScoreQuestion(Part):
    """A question whose answer is a level of a scale."""

    type: Literal["score"]
    instructions: Content | None = Field(None, description="the question")
    criteria: Annotated[list[Content], Field(min_length=1, max_length=255)] = Field(
        description="what each level means, from level 0"
    )


SystemOneQuestion = Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class PermutedFields(BaseModel):
    """Whether the place of an option may change an answer."""

    permute: Annotated[int, Field(ge=2, le=24)] | Literal["balanced"] | None = Field(
        None,
        description="ask choices in so many orders of their options, and take the mean of the log-probabilities; "
        "`balanced`: as many as there are options, each of them once in each place. Each order counts as a prompt",
    )


class ArtefactFields(BaseModel):
    """What is made of answers."""

    calibration: dict[str, str] | None = Field(
        None, description="by the names of questions: artefacts of `scoreline calibrate` that the server has"
    )
    threshold: dict[str, str] | None = Field(
        None, description="the same of `scoreline threshold`, which have their calibrations in them"
    )


class DecisionFields(OriginFields, PermutedFields, ArtefactFields):
    """What is asked about what. Unknown fields are refused."""

    state: Content = Field(description="what the questions are about: a text, or JSON")
    questions: Annotated[dict[str, SystemOneQuestion], Field(min_length=1, max_length=400)] = Field(
        description="the questions by their names"
    )
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")
    assets: None = Field(None, description="images, which the model can't see: refused")


class IgnoredFields(BaseModel):
    """Fields that clients send and that change no answer."""

    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None
    cache_salt: str | None = None
    request_id: str | None = None


class SystemOneBody(DecisionFields, CallFields, IgnoredFields):
    """The body of `POST /v1/systemone`."""

    priority: Any = Field(None, description="ignored: all calls are interactive")


class DecisionJobBody(DecisionFields, JobFields):
    """The body of `POST /v1/jobs` for decisions."""

    kind: Literal["decision"]


class OpenAiQuestion(BaseModel):
    """A question in OpenAI's words."""

    type: Literal["predicate", "choice", "score"]
    name: str | None = None
    instructions: str | list[dict[str, Any]]
    choices: Annotated[list[dict[str, Any]], Field(min_length=2, max_length=255)] | None = Field(
        None, description="of a choice: `value`, a text or a boolean, and `description`"
    )
    levels: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=255)] | None = Field(
        None, description="of a score: `label` and `description`, the lowest level first"
    )


class DecisionsBody(OriginFields, PermutedFields, ArtefactFields, CallFields, IgnoredFields):
    """The body of `POST /v1/decisions`, as OpenAI's clients send it. Unknown fields are refused."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)] = Field(
        description="what the questions are about: a text, or messages and calls of tools, which the prompt has as JSON"
    )
    questions: Annotated[list[OpenAiQuestion], Field(min_length=1, max_length=400)]
    model: str | None = Field(None, description="the model's name; default, and `default`: the one this server serves")


class Diagnostics(Shape):
    """How well the question suits the model."""

    label_mass: Share | None = Field(
        description="the share of the probability over the whole vocabulary that the labels have; null with a decision "
        "head, whose labels are no tokens"
    )
    argmax_is_label: bool | None = Field(description="whether the most probable token is one of the labels")
    orders: int | None = Field(
        None,
        description="with `permute`: in how many orders it was asked, if in more than one. `label_mass` is then "
        "their mean, and `argmax_is_label` says so of all",
    )
    spread: Share | None = Field(
        None, description="the largest difference between two orders in the probability of an option"
    )
    flips: Share | None = Field(
        None, description="the share of the orders whose most probable option is not that of the answer"
    )


class NoulAnswer(Shape):
    """The answer to a question of yes or no."""

    type: Literal["noul"]
    noul: Share = Field(description="the probability of yes")


class ChoiceAnswer(Shape):
    """The answer to a question with options."""

    type: Literal["choice"]
    choice: str = Field(description="the most probable option")
    confidence: Share
    probabilities: dict[str, Share]


class ScoreAnswer(Shape):
    """The answer to a question with levels."""

    type: Literal["score"]
    score: float = Field(description="the mean level")
    legend: dict[str, Content]
    confidence: Share
    probabilities: dict[str, Share]


class SystemOneUsage(Shape):
    """The tokens of all prompts."""

    input_tokens: int
    output_tokens: Literal[0]
    cached_tokens: int = Field(description="how many of them did not have to be computed again")


class JudgedAnswer(Shape):
    """What calibration and threshold make of an answer."""

    calibrated: dict[str, Share] | None = Field(None, description="the calibrated probability of each option")
    action: str | None = Field(None, description="an option as the threshold calls it, or `abstain`")
    label_set: list[str] | None = Field(None, description="the options that may be true, the most probable first")
    calibration: str | None = Field(description="the id of the calibration; null for a threshold that has none")
    threshold: str | None = Field(None, description="the id of the threshold")


class WithJudged(WithOrigin):
    """An answer with what artefacts make of it."""

    judged: dict[str, JudgedAnswer] | None = Field(
        None, description="by name, of the questions for which a calibration or a threshold is named"
    )


class SystemOneResponse(WithJudged):
    """Answers by the names of their questions."""

    id: str = Field(description="the id of the job that computed them")
    model: str
    answers: dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]
    usage: SystemOneUsage
    diagnostics: dict[str, Diagnostics]
    warnings: list[str]


class PredicateAnswer(Shape):
    """The answer to a predicate."""

    type: Literal["predicate"]
    name: str | None
    probability: Share


class ValueShare(Shape):
    """How probable a choice is."""

    value: str | bool
    probability: Share


class ChosenAnswer(Shape):
    """The answer to a choice."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: Share
    probabilities: list[ValueShare]


class LevelShare(Shape):
    """How probable a level is."""

    label: str
    value: int
    probability: Share


class RatedAnswer(Shape):
    """The answer to a score."""

    type: Literal["score"]
    name: str | None
    score: float
    confidence: Share
    probabilities: list[LevelShare]


class DecisionInputTokensDetails(Shape):
    cached_tokens: int
    cache_write_tokens: Literal[0]


class DecisionOutputTokensDetails(Shape):
    reasoning_tokens: Literal[0]


class DecisionsUsage(Shape):
    """The tokens of all prompts."""

    input_tokens: int
    input_tokens_details: DecisionInputTokensDetails
    output_tokens: Literal[0]
    output_tokens_details: DecisionOutputTokensDetails
    total_tokens: int


class DecisionsResponse(WithJudged):
    """Answers in the order of their questions."""

    id: str = Field(description="the id of the job that computed them")
    object: Literal["decision"]
    model: str
    answers: list[PredicateAnswer | ChosenAnswer | RatedAnswer]
    usage: DecisionsUsage
    diagnostics: list[Diagnostics]
    warnings: list[str]
