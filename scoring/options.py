"""The options of a scoring request: its priority, and the numbers that it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from checkpoints.classification import Activation
from scoring.layout import Head


class Priority(StrEnum):
    """How urgent a job is: decides how much slack is added to its accept time to get the time it is due."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BULK = "bulk"


class Scoring(StrEnum):
    """What the log-probabilities of a job are of."""

    TOKEN = "token"  # labels of one token
    SEQUENCE = "sequence"  # labels of any number of tokens
    LIKELIHOOD = "likelihood"  # no labels: the own tokens of each item behind the query


class Normalization(StrEnum):
    """What the log-probability of a label of several tokens is divided by."""

    NONE = "none"
    TOKENS = "tokens"  # the number of its tokens
    BYTES = "bytes"  # the number of its bytes in UTF-8


class Shape(StrEnum):
    """What the answer of a job looks like."""

    ITEMS = "items"  # numbers of each item
    SYSTEMONE = "systemone"  # answers to questions, as TypeSafe's interface writes them
    DECISIONS = "decisions"  # answers to questions, as OpenAI's interface writes them
    COMPLETION = "completion"  # prompts and what comes next, as OpenAI's interface writes them


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The options that change a request's output or its sequences."""

    apply_softmax: bool = False  # normalise the scores of each item over the labels
    return_logprobs: bool = False
    return_logits: bool = False
    item_first: bool = False  # score item + query instead of query + item
    return_provenance: bool = False  # say what computed the scores
    temperature: float = 1.0  # of the softmax over the labels; the logits are divided by it
    label_mass: bool = False  # take the logits of those of the whole vocabulary even if no score needs the others
    relevance: str | None = None  # how the scores make one number for each item, such as softmax(0): scoring.templates
    scoring: Scoring = Scoring.TOKEN
    label_normalization: Normalization = Normalization.NONE  # only of labels of any number of tokens
    return_token_logprobs: bool = False  # of a likelihood: those of each token
    return_tokens: bool = False  # of a likelihood: their ids
    shape: Shape = Shape.ITEMS
    activation: Activation = Activation.VOCABULARY  # what the outputs of the model's head become
    # Keep the vocabulary's most probable token as well: its log-probability for each item with labels of one token, and
    # its id and log-probability for each target whose score is kept.
    top: bool = False
    adapter: str | None = None  # that the model is computed with, by its name; None: the model alone
    receipt: str | None = None  # path and digest of the request (api.requests.receipts); None: the answer is not signed
    baseline: int = 0  # how many of the last items say nothing: what they get is taken from the scores of the others
    artefact: str | None = None  # what calibrates the scores and decides by them, as judgement.applying.Rule writes it

    @property
    def has_continuations(self) -> bool:
        """Whether target tokens stand behind the rows, instead of labels of one token that all rows share."""
        return self.scoring is not Scoring.TOKEN

    @property
    def is_of_vocabulary(self) -> bool:
        """Whether the labels are tokens, and so have a share of the probability of all tokens."""
        return self.activation is Activation.VOCABULARY

    @property
    def needs_targets(self) -> bool:
        """Whether an answer shows more of the continuations than their log-probabilities.

        Labels whose log-probabilities are divided have their share of the vocabulary by the undivided ones.
        """
        return self.scoring is Scoring.LIKELIHOOD or self.label_normalization is not Normalization.NONE

    @property
    def needs_provenance(self) -> bool:
        """Whether an answer says what computed the scores, in a field or in a receipt."""
        return self.return_provenance or self.receipt is not None

    @property
    def numbers_shown(self) -> int:
        """How many numbers an answer shows for each label of an item. What it shows for an item alone counts apart."""
        return 1 + self.return_logprobs + self.return_logits + (self.artefact is not None) + (self.baseline > 0)

    @property
    def head(self) -> Head:
        """The head that has the bits of the scores: see :class:`scoring.layout.Head`."""
        needs_vocabulary = self.has_continuations or self.label_mass or self.return_logprobs or not self.apply_softmax
        return Head.LOGPROBS if needs_vocabulary else Head.LOGITS
