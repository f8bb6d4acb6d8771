"""The templates of a service and the labels of what it scores, as the service describes them."""

from __future__ import annotations

from collections.abc import Sequence

from scoreline.client import Model, Template
from scoreline.exit_codes import CommandError, ExitCode


def template_of(models: Sequence[Model], name: str) -> Template:
    """Return the template that a request would mean. models: those that the service serves. Raises CommandError."""
    for model in models:
        for template in model.templates:
            if name in (template.name, pinned(template)):
                return template
    raise CommandError(f"the service has no template {name!r}: `scoreline models` lists them", ExitCode.REFUSED)


def labels_of(models: Sequence[Model], given: Sequence[str], template: str | None) -> tuple[str, ...]:
    """Return the labels that a request asks for: the given ones, those of its template, or the classes of the model.

    Raises CommandError if there are none.
    """
    labels = tuple(given) if template is None or given else tuple(template_of(models, template).labels)
    labels = labels or next((model.classes for model in models if model.classes), ())
    if not labels:
        message = "there is nothing to score: give a --label, or a --template, which has some"
        raise CommandError(message, ExitCode.USAGE)
    return labels


def pinned(template: Template) -> str:
    """Return the name by which requests mean a template only as long as it is not changed."""
    return template.name if template.digest is None else f"{template.name}@{template.digest}"
