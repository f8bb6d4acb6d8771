"""The options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from scoreline.client import DEFAULT_URL, Client, LabelNormalization, LabelScoring
from scoreline.exit_codes import CommandError, ExitCode
from scoreline.templates import template_of

USING = "Use a running service"

UrlOption = Annotated[
    str, typer.Option("--url", envvar="SCORELINE_URL", help="Where the service runs.", show_default=DEFAULT_URL)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", help="What may come next, as text, such as ' yes'; give it once for each label."),
]
LabelScoringOption = Annotated[
    LabelScoring | None,
    typer.Option("--label-scoring", help="`token`: each label is one token; `sequence`: it may be several."),
]
LabelNormalizationOption = Annotated[
    LabelNormalization | None,
    typer.Option("--label-normalization", help="What the log-probability of a label of several tokens is divided by."),
]
SoftmaxOption = Annotated[
    bool,
    typer.Option(
        "--softmax",
        help="Normalise the scores of each item over the labels, so that they sum to 1.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", help="With --softmax: divides the logits before. Above 1, scores are more even."),
]
TemplateOption = Annotated[
    str | None, typer.Option("--template", help="A template of the service, which has the wording and the labels.")
]
InstructionOption = Annotated[
    str | None, typer.Option("--instruction", help="What the task is, if the template has a place for it.")
]
QueryTemplateOption = Annotated[
    str | None, typer.Option("--query-template", help="What each query becomes: `{query}` stands for it.")
]
ItemTemplateOption = Annotated[
    str | None,
    typer.Option("--item-template", help="What each item becomes: `{item}` stands for it. Default: the item itself."),
]


def labels_of(client: Client, given: Sequence[str] | None, template: str | None) -> list[str]:
    """Return the labels that a request asks for: the given ones, or those of its template. Raises CommandError."""
    if given:
        return list(given)
    if template is None:
        raise CommandError("there is nothing to score: give a --label, or a --template, which has some", ExitCode.USAGE)
    return template_of(client.models(), template).labels
