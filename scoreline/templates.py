"""The models of a service, their templates and the labels of what they score, as the service describes them."""

from __future__ import annotations

from collections.abc import Sequence

from scoreline.client import Model, NotFound, Template
from scoreline.exit_codes import CommandError, ExitCode

DEFAULT_MODEL = "default"


def model_of(models: Sequence[Model], name: str | None) -> Model:
    """Return the model that a request would mean. Raises NotFound, as the service does.

    models: those that the service serves, the default first. name: None: the request names none. Behind the name of a
    model may stand that of an adapter, and the name of an adapter alone means one of the default.
    """
    name = DEFAULT_MODEL if name is None else name
    if models:
        by_name = {DEFAULT_MODEL: models[0], **{alias: model for model in models for alias in model.aliases}}
        by_name |= {model.id: model for model in models}
        own, _, adapter = name.partition(":")
        adapted = f"{by_name[own].id}:{adapter}" if own in by_name else f"{models[0].id}:{name}"
        if found := by_name.get(name) or by_name.get(adapted):
            return found
    raise NotFound("model_not_found", f"there is no model {name!r}; see /v1/models", 404, param="model")


def template_of(model: Model, name: str) -> Template:
    """Return the template that a request to a model would mean. Raises CommandError."""
    for template in model.templates:
        if name in (template.name, pinned(template)):
            return template
    raise CommandError(f"the service has no template {name!r}: `scoreline models` lists them", ExitCode.REFUSED)


def labels_of(model: Model, given: Sequence[str], template: str | None) -> tuple[str, ...]:
    """Return the labels that a request asks for: the given ones, those of its template, or the classes of the model.

    Raises CommandError if there are none.
    """
    labels = tuple(given) if template is None or given else tuple(template_of(model, template).labels)
    labels = labels or model.classes
    if not labels:
        message = "there is nothing to score: give a --label, or a --template, which has some"
        raise CommandError(message, ExitCode.USAGE)
    return labels


def pinned(template: Template) -> str:
    """Return the name by which requests mean a template only as long as it is not changed."""
    return template.name if template.digest is None else f"{template.name}@{template.digest}"
