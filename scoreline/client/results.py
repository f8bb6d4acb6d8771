"""Scores, likelihoods and rankings, as the client returns them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from scoreline.client import tables
from scoreline.client.reading import read_fields
from scoreline.client.tables import NOTHING_ASKED, Asked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa


_OPTIONAL = frozenset({"calibration", "threshold", "configuration"})


@dataclass(frozen=True, slots=True)
class Provenance:
    """What computed some scores: what is needed to get the same bits again."""

    model: str  # the name of the model
    revision: str | None  # the commit on the hub; None for a model from a folder
    weights_fingerprint: str  # a hash of all weights as they are stored
    tokenizer_fingerprint: str  # a hash of the tokenizer
    dtype: str  # the number format of weights and activations
    device: str  # the platform and the kind of the device
    processor: str | None  # of a device that is a processor: its name, and the cores in use
    step_tokens: int  # tokens of the largest step
    batch_invariant: bool  # False: the rounding may depend on what else was scored
    configuration: str | None  # a hash of the model's, and of how algorithms are chosen; None: an old service
    versions: Mapping[str, str]  # of the service and of the libraries that compute
    algorithms: Sequence[str]  # by which the items were scored
    calibration: str | None  # the id of the calibration that was applied; None: there is none
    threshold: str | None  # the id of the threshold that decided; None: there is none

    @classmethod
    def read_all(cls, raw: Mapping[str, Any]) -> list[Provenance | None] | None:
        """Read the provenance of an answer. None in the list stands for a version that recorded nothing."""
        entries = raw.get("provenance")
        if entries is None:
            return None
        return [None if one is None else read_fields(cls, one, optional=_OPTIONAL) for one in entries]


OPTIONAL_COLUMNS = frozenset({"logprobs", "logits", "label_mass", "relevance", "calibrated", "action", "label_set"})
"""What an answer may have for each item beside its scores, also in a page."""

TOKEN_COLUMNS = frozenset({"token_logprobs", "tokens"})
"""What an answer may have for each item beside its likelihood."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the items of a baseline got."""

    scores: list[list[float]]  # of each of them: a number for each label
    label_mass: list[float] | None  # of each of them; None where it was not computed


@dataclass(frozen=True, slots=True, repr=False)
class ScoreResult(tables.Tabular):
    """The scores of a request: a row per item and a column per label, in the order of the request."""

    id: str  # of the job that computed them
    model: str  # the name of the model that scored them
    scores: list[list[float]]  # of each item: a number for each label
    logprobs: list[list[float | None]] | None  # None unless asked for; in it, None stands for minus infinity
    logits: list[list[float | None]] | None  # None unless asked for; in it, None stands for an infinity
    prompt_tokens: int  # the lengths of all sequences, summed
    cached_tokens: int  # prompt tokens that did not have to be computed
    warnings: list[str]  # what is odd about the request, in words
    label_mass: list[float] | None  # of each item: the labels' share of the probability; tiny: the prompt is wrong
    relevance: list[float] | None  # of each item, by the formula of the template that the request named
    adjusted: list[list[float]] | None  # of each item: probabilities without what a baseline gets; None without one
    baseline: Baseline | None  # what the baseline got
    calibrated: list[list[float]] | None  # of each item: the probability of each label; None without a calibration
    action: list[str] | None  # of each item: a label, or "abstain"; None without a threshold
    label_set: list[list[str]] | None  # of each item: the labels that may be true; None unless a threshold has sets
    provenance: list[Provenance | None] | None  # what computed them; None unless asked for
    receipt: str | None  # a signed statement of request and answer; None unless asked for
    labels: tuple[str | int, ...] | None  # names of the columns, where the client knows them
    row_index: pd.Index | None = field(repr=False, compare=False)  # of the pandas column that the items came from
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Asked = NOTHING_ASKED) -> ScoreResult:
        """Read an answer of ``/v1/score``, or the ``result`` of a job."""
        usage, baseline = raw["usage"], raw.get("baseline")
        return read_fields(
            cls,
            raw,
            optional=OPTIONAL_COLUMNS | {"adjusted"},
            baseline=None if baseline is None else read_fields(Baseline, baseline, optional={"label_mass"}),
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            provenance=Provenance.read_all(raw),
            receipt=raw.get("receipt"),
            labels=asked.labels,
            row_index=asked.index,
        )

    def to_numpy(self, values: tables.Values = "scores") -> npt.NDArray[np.float64]:
        """Return the scores, log-probabilities or logits as an array, [items, labels]. It needs NumPy.

        Minus infinity stands for what is None here. Raises ValueError if they are not there, or if items have
        different numbers of labels.
        """
        import numpy as np

        found: list[list[float | None]] | None = getattr(self, values)
        if found is None:
            raise ValueError(f"there are no {values}: ask for them with return_{values}=True")
        if not self._has_equal_rows():
            message = "items have different numbers of labels, so their scores are no array; to_arrow() has lists"
            raise ValueError(message)
        rows = [[-math.inf if value is None else value for value in row] for row in found]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self._width())

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per item. It needs pandas.

        Its index is that of the pandas column that the items came from. If they came from elsewhere, or the result was
        read by the id of its job alone, its rows are numbered from 0.

        It has a column for each label, named by it where the client knows the labels, else by its number, and the
        columns ``label_mass``, ``relevance``, ``calibrated``, ``action`` and ``label_set`` where the service returned
        them. Items with different numbers of labels have one column, ``scores``, of lists.
        """
        return self._to_pandas()

    def to_arrow(self) -> pa.Table:
        """Return the same as an Arrow table, whose columns are named by texts. It needs pyarrow."""
        return self._to_arrow()

    def _has_equal_rows(self) -> bool:
        return len({len(row) for row in self.scores}) <= 1

    def _width(self) -> int:
        return len(self.scores[0]) if self.scores else len(self.labels or ())

    def _columns(self) -> tables.Columns:
        names = ("label_mass", "relevance", "adjusted", "calibrated", "action", "label_set")
        others: dict[str | int, Any] = {name: column for name in names if (column := getattr(self, name)) is not None}
        if not self._has_equal_rows():
            return {"scores": self.scores, **others}
        width = self._width()
        labels = self.labels if self.labels is not None and len(self.labels) == width else range(width)
        return {**{label: [row[place] for row in self.scores] for place, label in enumerate(labels)}, **others}


@dataclass(frozen=True, slots=True, repr=False)
class LikelihoodResult(tables.Tabular):
    """The likelihoods of a request: a value per item in each list, in the order of the request."""

    id: str  # of the job that computed them
    model: str  # the name of the model that scored them
    logprob: list[float | None]  # the sums over the items' tokens; None stands for minus infinity
    num_tokens: list[int]  # how many tokens each item has
    is_greedy: list[bool]  # whether each token was the most probable one
    token_logprobs: list[list[float | None]] | None  # None unless asked for
    tokens: list[list[int]] | None  # None unless asked for
    prompt_tokens: int  # the lengths of all sequences, summed
    cached_tokens: int  # prompt tokens that did not have to be computed
    warnings: list[str]  # what is odd about the request, in words
    provenance: list[Provenance | None] | None  # what computed them; None unless asked for
    receipt: str | None  # a signed statement of request and answer; None unless asked for
    row_index: pd.Index | None = field(repr=False, compare=False)  # of the pandas column that the items came from
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Asked = NOTHING_ASKED) -> LikelihoodResult:
        """Read an answer of ``/v1/likelihood``, or the ``result`` of a job of that kind."""
        usage = raw["usage"]
        return read_fields(
            cls,
            raw,
            optional=TOKEN_COLUMNS,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            provenance=Provenance.read_all(raw),
            receipt=raw.get("receipt"),
            row_index=asked.index,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per item, and the index of :meth:`ScoreResult.to_pandas`. It needs pandas.

        Its columns are ``logprob``, ``num_tokens``, ``is_greedy``, and ``token_logprobs`` and ``tokens`` if asked for.
        """
        return self._to_pandas()

    def to_arrow(self) -> pa.Table:
        """Return the same as an Arrow table. It needs pyarrow."""
        return self._to_arrow()

    def _columns(self) -> tables.Columns:
        names = ("logprob", "num_tokens", "is_greedy", "token_logprobs", "tokens")
        return {name: column for name in names if (column := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, repr=False)
class ItemLikelihood(tables.Short):
    """The likelihood of one item of a job."""

    index: int  # its place in the request
    logprob: float | None  # the sum over the item's tokens; None stands for minus infinity
    num_tokens: int  # how many tokens the item has
    is_greedy: bool  # whether each token was the most probable one
    token_logprobs: list[float | None] | None  # None unless asked for
    tokens: list[int] | None  # None unless asked for

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ItemLikelihood:
        """Read a line of ``/v1/jobs/JOB_ID/scores``."""
        return read_fields(cls, raw, optional=TOKEN_COLUMNS)


@dataclass(frozen=True, slots=True, repr=False)
class RankedDocument(tables.Short):
    """A document and how relevant it is."""

    index: int  # its place in the request
    relevance_score: float  # by the template's formula, which need not lie between 0 and 1
    label_mass: float | None  # the probability of the labels; tiny: the prompt is wrong; None: the model has classes
    calibrated: list[float] | None  # the probability of each label of the template; None without a calibration
    action: str | None  # a label, or "abstain"; None without a threshold
    label_set: list[str] | None  # the labels that may be true; None unless a threshold has sets
    text: str | None  # None unless asked for


@dataclass(frozen=True, slots=True, repr=False)
class Ranking(tables.Tabular):
    """Documents by their relevance to a query, highest first, ties by index."""

    id: str  # of the job that computed it
    model: str  # the name of the model that scored it
    results: list[RankedDocument]  # the documents, the most relevant first
    prompt_tokens: int  # the lengths of all sequences, summed
    warnings: list[str]  # what is odd about the request, in words
    provenance: list[Provenance | None] | None  # what computed it; None unless asked for
    receipt: str | None  # a signed statement of request and answer; None unless asked for
    row_index: pd.Index | None = field(repr=False, compare=False)  # of the pandas column of documents
    raw: Mapping[str, Any] = field(repr=False)  # the whole response

    @classmethod
    def read(cls, raw: Mapping[str, Any], asked: Asked = NOTHING_ASKED) -> Ranking:
        """Read an answer of ``/v1/rerank``."""
        texts = [(result.get("document") or {}).get("text") for result in raw["results"]]
        return read_fields(
            cls,
            raw,
            results=[
                read_fields(RankedDocument, result, optional=OPTIONAL_COLUMNS, text=text)
                for result, text in zip(raw["results"], texts, strict=True)
            ],
            prompt_tokens=raw["usage"]["prompt_tokens"],
            provenance=Provenance.read_all(raw),
            receipt=raw.get("receipt"),
            row_index=asked.index,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per document, the most relevant first. It needs pandas.

        Each row has the index of its document in the pandas column that the documents came from. If they came from
        elsewhere, the rows are numbered from 0. The columns are ``index``, which is the document's place in the
        request, ``relevance_score``, ``label_mass``, what a calibration or threshold says, and ``text``, where the
        service returned them.
        """
        return self._to_pandas()

    def to_arrow(self) -> pa.Table:
        """Return the same as an Arrow table. It needs pyarrow."""
        return self._to_arrow()

    def _columns(self) -> tables.Columns:
        columns = {one.name: [getattr(result, one.name) for result in self.results] for one in fields(RankedDocument)}
        # A model with classes has no label mass, and what follows is returned on demand.
        always = ("index", "relevance_score")
        return {
            name: column for name, column in columns.items() if name in always or any(c is not None for c in column)
        }

    def _index(self) -> pd.Index | None:
        return None if self.row_index is None else self.row_index.take([one.index for one in self.results])


@dataclass(frozen=True, slots=True, repr=False)
class ItemScores(tables.Short):
    """The scores of one item of a job, one for each label."""

    index: int  # its place in the request
    scores: list[float]  # a number for each label
    logprobs: list[float | None] | None  # None unless asked for; in it, None stands for minus infinity
    logits: list[float | None] | None  # None unless asked for; in it, None stands for an infinity
    label_mass: float | None  # the labels' share of the probability; None where it was not computed
    relevance: float | None  # by the formula of the template that the request named
    calibrated: list[float] | None  # the probability of each label; None without a calibration
    action: str | None  # a label, or "abstain"; None without a threshold
    label_set: list[str] | None  # the labels that may be true; None unless a threshold has sets

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ItemScores:
        """Read a line of ``/v1/jobs/JOB_ID/scores``."""
        return read_fields(cls, raw, optional=OPTIONAL_COLUMNS)


@dataclass(frozen=True, slots=True)
class Template:
    """A template of the service, which a request may name."""

    name: str  # by which requests name it
    labels: list[str]  # the labels that it scores, as texts
    relevance: str  # the formula that makes one number of the scores of the labels
    digest: str | None  # of what its scores depend on; None from a service of an earlier version


@dataclass(frozen=True, slots=True)
class Artefact:
    """A calibration or a threshold of the service, which a request may name."""

    name: str  # by which requests name it, in the field that its kind is called
    kind: str  # "calibration" or "threshold"
    labels: list[str]  # the labels that it is for, as it calls them
    id: str  # a hash of the artefact


@dataclass(frozen=True, slots=True)
class Model:
    """A served model."""

    id: str  # the name by which requests name it
    parent: str | None  # the model alone, if this is a model with an adapter
    aliases: tuple[str, ...]  # further names that requests may give
    version: int | None  # grows with each change of a model of the catalogue; None: there is no catalogue
    max_model_len: int  # longest sequence, in tokens
    live_workers: int  # how many workers serve it now
    template: str | None  # by which documents are ranked; None: by none, unless a request names one
    templates: list[Template]  # those that a request may name
    artefacts: list[Artefact]  # calibrations and thresholds that were made for it
    classes: tuple[str, ...]  # the labels of a model that was trained to classify; else none
    decides: bool  # whether it has a head for decisions, and so answers these alone
    vocabulary: int  # token ids are below this
    delimiter: int | None  # the token between query and items, in delimiter mode
    raw: Mapping[str, Any] = field(repr=False)  # the whole entry

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Model:
        """Read an entry of ``/v1/models``."""
        names = ("name", "labels", "relevance", "digest")
        templates = [Template(*map(one.get, names)) for one in raw.get("templates", [])]
        classes = raw.get("classes") or {"names": ()}
        decides = classes.get("activation") == "decisions"
        own = () if decides else tuple(classes["names"])
        # Of these a service of an earlier version says nothing.
        parent, aliases, version = raw.get("parent"), tuple(raw.get("aliases", ())), raw.get("version")
        artefacts = [read_fields(Artefact, one) for one in raw.get("artefacts", [])]
        named = {"parent": parent, "aliases": aliases, "version": version}
        return read_fields(
            cls, {**raw, **named}, templates=templates, artefacts=artefacts, classes=own, decides=decides
        )
