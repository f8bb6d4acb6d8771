"""The templates that a deployment knows, which of them ranks its documents, and whether it suits the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """The templates that requests may name, and the one by which documents are ranked without such a name."""

    by_name: Mapping[str, Template]
    default: Template

    @classmethod
    def read(cls, wanted: str | None, model: str) -> KnownTemplates:
        """Read the templates of the service and, if one is wanted that is a file, this one.

        wanted: a name, or the path of a file; None: the template that was made for a model of the served name. Raises
        TemplateError.
        """
        by_name = {path.stem: read_template(path) for path in sorted(_FOLDER.glob(f"*{SUFFIX}"))}
        if wanted is None:
            suiting = [template for template in by_name.values() if template.suits(model)]
            return cls(by_name, suiting[0] if suiting else by_name[FALLBACK])
        if wanted in by_name:
            return cls(by_name, by_name[wanted])
        if os.sep not in wanted and not wanted.endswith(SUFFIX):
            raise TemplateError(f"there is no template {wanted!r}: name {', '.join(by_name)}, or a file")
        own = read_template(Path(wanted))
        return cls({**by_name, own.name: own}, own)


def require_fit(template: Template, tokenizer: TextTokenizer) -> None:
    """Raise TemplateError if one of the template's control tokens is not one token to a tokenizer, or a label.

    A label may have several tokens if the template says so.
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
    if template.label_scoring is Scoring.SEQUENCE:
        return
    for label in template.labels:
        try:
            tokenizer.single_token(label)
        except RequestError as error:
            raise TemplateError(f"the template {template.name} was made for other models: {error.message}") from None
