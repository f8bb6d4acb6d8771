"""What calls and jobs take. An option stands here once: methods, their help and the bodies of requests follow.

The paragraphs behind the first one of a docstring explain the options, and become a part of the help of each method.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

from scoreline.client.progress import MapProgress


class Column(Protocol):
    """An array or a column of NumPy, pandas, Arrow or the like."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: Any, /) -> Any: ...


Query = str | Sequence[int] | Column
"""A text, or token ids."""

Items = Sequence[str] | Sequence[Sequence[int]] | Sequence[Column] | Column
"""Texts, or lists of token ids."""

StreamedItems = Iterable[str] | Iterable[Sequence[int]] | AsyncIterable[str] | AsyncIterable[Sequence[int]] | Column
"""The items of a large job, which come one by one."""

Labels = Sequence[int] | Sequence[Sequence[int]] | Column
"""Ids of labels: the same for all items, or a list for each item."""

TextLabels = Sequence[str] | Sequence[Sequence[str]] | Column
"""Labels as texts: the same for all items, or a list for each item."""

LabelScoring = Literal["token", "sequence"]
LabelNormalization = Literal["none", "tokens", "bytes"]
Priority = Literal["interactive", "normal", "bulk"]
Permute = int | Literal["balanced"]


class PromptOptions(TypedDict, total=False):
    """What the model reads, and what its answer becomes.

    label_scoring: ``"sequence"``: a label has any number of tokens, and its log-probability is the sum of theirs.
    label_normalization: what their log-probabilities are divided by: ``"none"``, ``"tokens"`` or ``"bytes"``.

    apply_softmax: False: scores are probabilities over the whole vocabulary; True: each row sums to 1.
    temperature: divides the logits before ``apply_softmax``; None: 1.
    query_template, item_template: the text that the query, or each item, becomes; ``{query}`` and ``{item}`` stand for
    them. template: the name of a template of the service instead of these two. instruction: what the template says the
    task is, if it has a place for it.
    calibration, threshold: the name of a calibration or a threshold that the service has: its answer has calibrated
    probabilities, and what to do with each item, too.
    """

    label_scoring: LabelScoring | None
    label_normalization: LabelNormalization | None
    apply_softmax: bool
    temperature: float | None
    query_template: str | None
    item_template: str | None
    template: str | None
    instruction: str | None
    calibration: str | None
    threshold: str | None


class ScoreOptions(PromptOptions, total=False):
    """What is asked about each item.

    labels: the candidates for the next token as texts, each of which is one token, or a list of them for each item.
    label_token_ids: the same as ids. label_token_sequences: labels of any number of tokens as lists of ids.
    baseline: items that say nothing, such as ``""`` and ``"N/A"``: the answer has ``adjusted`` probabilities, too,
    without the share of each label that these get.
    item_first: score item + query instead of query + item.
    return_logprobs, return_logits, return_provenance: also return log-probabilities over the whole vocabulary, raw
    logits, and what computed the scores. return_receipt: also return a signed statement of all this.
    model: the name of a model; None: the one that is served.
    """

    labels: TextLabels | None
    label_token_ids: Labels | None
    label_token_sequences: Sequence[Sequence[int]] | None
    baseline: Sequence[str] | Sequence[Sequence[int]] | None
    item_first: bool
    return_logprobs: bool
    return_logits: bool
    return_provenance: bool
    return_receipt: bool
    model: str | None


class LikelihoodOptions(TypedDict, total=False):
    """What is asked about the tokens of each item.

    return_token_logprobs, return_tokens, return_provenance: also return the log-probability of each token, the ids of
    the tokens, and what computed them. return_receipt: also return a signed statement of all this.
    model: the name of a model; None: the one that is served.
    """

    return_token_logprobs: bool
    return_tokens: bool
    return_provenance: bool
    return_receipt: bool
    model: str | None


class JobOptions(TypedDict, total=False):
    """What becomes of a job.

    metadata: at most 16 texts of your own, which are returned with the job. priority: ``"interactive"``, ``"normal"``
    or ``"bulk"``; None: normal. expires_in: seconds after which what is not scored yet is given up.
    webhook: where to be told of the job's end: ``{"url": ..., "events": [...]}``.
    """

    metadata: Mapping[str, str] | None
    priority: Priority | None
    expires_in: float | None
    webhook: Mapping[str, Any] | None


class ScoreJobOptions(ScoreOptions, JobOptions, total=False):
    """A job of scores."""


class LikelihoodJobOptions(LikelihoodOptions, JobOptions, total=False):
    """A job of likelihoods."""


class ManyOptions(TypedDict, total=False):
    """How many jobs are carried out, one for each pair or state.

    timeout: seconds that one may take; None: any time.
    idempotency_key: makes it safe to run the same again: number n is sent with the key ``KEY-n``, so what was computed
    before is not computed again. progress: called with a MapProgress after each. bar: show a bar on standard error.
    """

    timeout: float | None
    idempotency_key: str | None
    progress: Callable[[MapProgress], object] | None
    bar: bool


class MapOptions(ScoreJobOptions, ManyOptions, total=False):
    """Jobs of scores, one for each pair."""


class SystemOptions(TypedDict, total=False):
    """What :meth:`Client.evaluate` compares: a prompt and its labels. Its explanation has what they mean."""

    query: str | None
    labels: Sequence[str] | Column | Mapping[Any, str] | None
    label_scoring: LabelScoring | None
    label_normalization: LabelNormalization | None
    temperature: float | None
    query_template: str | None
    item_template: str | None
    template: str | None
    instruction: str | None
    baseline: Sequence[str] | None
    model: str | None


class EvaluateOptions(SystemOptions, ManyOptions, total=False):
    """What all systems have that do not say otherwise, and how they are scored."""


class DecisionOptions(TypedDict, total=False):
    """How questions are asked, and what is made of the answers.

    permute: ask choices in so many orders of their options, 2 to 24, and take the mean; ``"balanced"``: in as many as
    there are options.
    calibration, threshold: by the names of questions, the names of calibrations and thresholds that the service has:
    ``judged`` of a decision says what they make of it.
    return_provenance: also return what computed the answers. return_receipt: also return a signed statement of
    request, answers and provenance. model: the name of a model; None: the one that is served.
    """

    permute: Permute | None
    calibration: Mapping[str, str] | None
    threshold: Mapping[str, str] | None
    return_provenance: bool
    return_receipt: bool
    model: str | None


class DecisionJobOptions(DecisionOptions, JobOptions, total=False):
    """A job of decisions."""


class DecideManyOptions(DecisionJobOptions, ManyOptions, total=False):
    """Jobs of decisions, one for each state."""


EXPLAINED = (ScoreOptions, PromptOptions, LikelihoodOptions, DecisionOptions, JobOptions, ManyOptions)
"""The kinds of options whose docstrings explain them."""
