"""The templates that a deployment knows, which of them ranks its documents, and whether it suits the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpoints.classification import Classes
from scoring.error_codes import RequestError
from scoring.options import Scoring
from scoring.templates.template import SUFFIX, Template, read_template
from scoring.templates.wording import TemplateError
from scoring.tokenizing.tokenization import TextTokenizer

FALLBACK = "yes-no"
"""The template for models that no other one was made for."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class KnownTemplates:
    """The templates that requests may name, and the one by which documents are ranked without such a name.

    A model with classes has the templates whose labels are classes, or all templates if it has a single class. There is
    no default for it unless one was made for it, because its answer says nothing about the question of another one.
    """

    by_name: Mapping[str, Template]
    default: Template | None

    @property
    def default_name(self) -> str | None:
        """The name of the default."""
        return None if self.default is None else self.default.name

    @classmethod
    def read(cls, wanted: str | None, model: str, classes: Classes | None = None) -> KnownTemplates:
        """Read the templates of the service and, if one is wanted that is a file, this one.

        wanted: a name, or the path of a file; None: the template that was made for a model of the served name. Raises
        TemplateError.
        """
        of_service = [read_template(path) for path in sorted(_FOLDER.glob(f"*{SUFFIX}"))]
        adapted = of_service if classes is None else [template.with_classes(classes) for template in of_service]
        by_name = {template.name: template for template in adapted if template is not None}
        if wanted is None:
            suiting = [template for template in by_name.values() if template.suits(model)]
            fallback = by_name[FALLBACK] if classes is None else None
            return cls(by_name, suiting[0] if suiting else fallback)
        if wanted in by_name:
            return cls(by_name, by_name[wanted])
        if os.sep not in wanted and not wanted.endswith(SUFFIX):
            raise TemplateError(f"there is no template {wanted!r}: name {', '.join(by_name)}, or a file")
        file = read_template(Path(wanted))
        own = file if classes is None else file.with_classes(classes)
        if own is None:
            raise TemplateError(f"the template {wanted} has labels that are no classes of the served model")
        return cls({**by_name, own.name: own}, own)


def require_fit(template: Template, tokenizer: TextTokenizer, *, has_classes: bool = False) -> None:
    """Raise TemplateError if one of the template's control tokens is not one token to a tokenizer, or a label.

    A label may have several tokens if the template says so, and any number if it is a class.
    """
    missing = [
        token
        for token in template.control_tokens
        if tokenizer.encode_behind_text(token) != [tokenizer.added_tokens.get(token)]
    ]
    if missing:
        raise TemplateError(
            f"the template {template.name} was made for other models: the served tokenizer would split "
            f"{', '.join(missing)}"
        )
    if template.label_scoring is Scoring.SEQUENCE or has_classes:
        return
    for label in template.labels:
        try:
            tokenizer.single_token(label)
        except RequestError as error:
            raise TemplateError(f"the template {template.name} was made for other models: {error.message}") from None
