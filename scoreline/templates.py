"""The templates of a service, as the service describes them."""

from __future__ import annotations

from collections.abc import Sequence

from scoreline.client import Model
from scoreline.exit_codes import CommandError, ExitCode


def labels_of_template(models: Sequence[Model], name: str) -> list[str]:
    """Return the labels of a template. models: those that the service serves. Raises CommandError."""
    for model in models:
        for template in model.raw.get("templates", ()):
            if template["name"] == name:
                return list(template["labels"])
    raise CommandError(f"the service has no template {name!r}: `scoreline models` lists them", ExitCode.REFUSED)
