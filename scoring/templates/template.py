"""A template: the wording of a prompt, the labels that answer it, and how their scores become a relevance.

A template is a TOML file. The files beside this module are the templates that the service brings along; docs/prompts.md
says what their fields mean and how to write one.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar, cast

from checkpoints.classification import Activation, Classes
from scoring.options import Normalization, Scoring
from scoring.templates.relevance import Formula, Relevance
from scoring.templates.wording import Place, TemplateError, Wording, has_place, read_pieces

SUFFIX = ".toml"

_FIELDS = frozenset(
    {
        "models",
        "query",
        "query_with_instruction",
        "default_instruction",
        "item",
        "labels",
        "relevance",
        "control_tokens",
        "label_scoring",
        "label_normalization",
    }
)


@dataclass(frozen=True, slots=True)
class Template:
    """How a model wants to be asked."""

    name: str
    models: tuple[str, ...]  # patterns of the names of the models that it was made for, in small letters
    plain: Wording  # without an instruction of the client
    instructed: Wording | None  # with one; None if the template has no place for an instruction
    labels: tuple[str, ...]
    relevance: Relevance
    control_tokens: tuple[str, ...]  # texts each of which is one token to the models that it was made for
    digest: str  # of all that its scores depend on
    label_scoring: Scoring = Scoring.TOKEN
    label_normalization: Normalization = Normalization.NONE

    @property
    def label_fields(self) -> dict[str, str]:
        """What a request says in these fields that has the template's labels."""
        return {"label_scoring": self.label_scoring.value, "label_normalization": self.label_normalization.value}

    def wording(self, instruction: str | None) -> Wording:
        """Return the wording with the instruction of a client, or without one. Raises TemplateError."""
        if instruction is None:
            return self.plain
        if self.instructed is None:
            raise TemplateError("it has no place for an instruction")
        return replace(self.instructed, instruction=instruction, sent_characters=len(instruction))

    def with_classes(self, classes: Classes) -> Template | None:
        """Return the template for a model with classes: its labels are classes, or become the only one there is.

        The relevance is then the output of the single class, as it is or through a sigmoid. None if neither holds.
        """
        if classes.activation is Activation.DECISIONS:
            return None
        if self.label_scoring is Scoring.TOKEN and set(self.labels) <= set(classes.names):
            return self
        if len(classes.names) > 1:
            return None
        return replace(
            self,
            labels=classes.names,
            relevance=Relevance(Formula.LOGIT, (0,), sigmoid=classes.activation is not Activation.IDENTITY),
            label_scoring=Scoring.TOKEN,
            label_normalization=Normalization.NONE,
        )

    def suits(self, model: str) -> bool:
        """Return whether it was made for a model of this name."""
        return any(fnmatchcase(model.lower(), pattern) for pattern in self.models)


def read_template(path: Path) -> Template:
    """Read a template from a file, whose name without the ending is the template's. Raises TemplateError."""
    try:
        return parse_template(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TemplateError) as error:
        raise TemplateError(f"the template {path} can't be used: {error}") from error


def parse_template(name: str, fields: Mapping[str, object]) -> Template:
    """Return the template with these fields. Raises TemplateError."""
    if unknown := fields.keys() - _FIELDS:
        raise TemplateError(f"it has the unknown fields {', '.join(sorted(unknown))}")
    labels = _texts(fields, "labels")
    if not labels:
        raise TemplateError("labels must name at least one label")
    item = _pieces(fields, "item", Place.ITEM)
    query = _pieces(fields, "query", Place.QUERY, Place.INSTRUCTION)
    default = fields.get("default_instruction")
    if not isinstance(default, str | None):
        raise TemplateError("default_instruction must be a text")
    if has_place(query, Place.INSTRUCTION) is not (default is not None):
        raise TemplateError("query has the place {instruction} if, and only if, there is a default_instruction")
    with_instruction = query if default is not None else None
    if "query_with_instruction" in fields:
        with_instruction = _pieces(fields, "query_with_instruction", Place.QUERY, Place.INSTRUCTION)
        if not has_place(with_instruction, Place.INSTRUCTION):
            raise TemplateError("query_with_instruction: it must have the place {instruction}")
    scoring = _choice(fields, "label_scoring", (Scoring.TOKEN, Scoring.SEQUENCE))
    normalization = _choice(fields, "label_normalization", tuple(Normalization))
    if scoring is Scoring.TOKEN and normalization is not Normalization.NONE:
        raise TemplateError('label_normalization needs label_scoring = "sequence"')
    if scoring is Scoring.SEQUENCE and not all(labels):
        raise TemplateError("labels: a label must have one token at least")
    relevance = fields.get("relevance")
    if not isinstance(relevance, str):
        raise TemplateError("relevance must be a text, such as softmax(0)")
    return Template(
        name=name,
        models=tuple(pattern.lower() for pattern in _texts(fields, "models")),
        plain=Wording(query, item, default or ""),
        instructed=None if with_instruction is None else Wording(with_instruction, item),
        labels=labels,
        relevance=Relevance.read(relevance, len(labels)),
        control_tokens=_texts(fields, "control_tokens"),
        digest=_digest(fields),
        label_scoring=scoring,
        label_normalization=normalization,
    )


def _digest(fields: Mapping[str, object]) -> str:
    """Return a digest of the fields but the models: which ones a template is recommended for changes no score."""
    content = json.dumps({name: value for name, value in fields.items() if name != "models"}, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


Choice = TypeVar("Choice", bound=StrEnum)


def _choice(fields: Mapping[str, object], name: str, allowed: Sequence[Choice]) -> Choice:
    """Return the value of a field that has one of these values, of which the first one is the default."""
    value = fields.get(name, allowed[0].value)
    for one in allowed:
        if value == one.value:
            return one
    raise TemplateError(f"{name} must be one of {', '.join(allowed)}")


def _pieces(fields: Mapping[str, object], name: str, *places: Place) -> tuple[tuple[str | Place, ...], ...]:
    value = fields.get(name)
    if not isinstance(value, str):
        value = list(_texts(fields, name))
    try:
        return read_pieces(value, places[0], places[1:])
    except TemplateError as error:
        raise TemplateError(f"{name}: {error}") from None


def _texts(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TemplateError(f"{name} must be a list of texts")
    return tuple(cast("list[str]", value))
