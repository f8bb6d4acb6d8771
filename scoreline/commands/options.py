"""The options that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

import typer

from scoreline.client import DEFAULT_URL, LabelNormalization, LabelScoring

USING = "Use a running service"

UrlOption = Annotated[
    str, typer.Option("--url", envvar="SCORELINE_URL", help="Where the service runs.", show_default=DEFAULT_URL)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", help="What may come next, as text, such as ' yes'; give it once for each label."),
]
PermuteOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|balanced",
        help="With --questions: ask choices in so many orders of their options, and take the mean.",
    ),
]
BaselineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        help="A text that says nothing, such as N/A; it may be given again. The scores are then without the share of "
        "each label that such texts get.",
    ),
]
TemplateOption = Annotated[
    str | None, typer.Option("--template", help="A template of the service, which has the wording and the labels.")
]
InstructionOption = Annotated[
    str | None, typer.Option("--instruction", help="What the task is, if the template has a place for it.")
]


class PromptOptions(TypedDict):
    """The options that say what the model is asked about an item, under the names that the client has for them."""

    label_scoring: Annotated[
        LabelScoring | None,
        typer.Option("--label-scoring", help="`token`: each label is one token; `sequence`: it may be several."),
    ]
    label_normalization: Annotated[
        LabelNormalization | None,
        typer.Option(
            "--label-normalization", help="What the log-probability of a label of several tokens is divided by."
        ),
    ]
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="With --softmax: divides the logits before. Above 1, scores are more even."),
    ]
    template: TemplateOption
    instruction: InstructionOption
    query_template: Annotated[
        str | None, typer.Option("--query-template", help="What each query becomes: `{query}` stands for it.")
    ]
    item_template: Annotated[
        str | None,
        typer.Option(
            "--item-template", help="What each item becomes: `{item}` stands for it. Default: the item itself."
        ),
    ]


class ScoringOptions(PromptOptions):
    """The options that say how items are scored, under the names that the client has for them."""

    apply_softmax: Annotated[
        bool,
        typer.Option("--softmax", help="Normalise the scores of each item over the labels, so that they sum to 1."),
    ]


class ArtefactOptions(ScoringOptions):
    """The same, and what is made of the scores."""

    baseline: BaselineOption
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", help="A calibration of the service: the scores are then its probabilities."),
    ]
    threshold: Annotated[
        str | None,
        typer.Option(
            "--threshold", help="A threshold of the service: a column `action` says what to do with each row."
        ),
    ]


def with_scoring_options(
    before: str, options: type = ScoringOptions
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes options of a kind each of them by itself, before one of its own options."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        place = list(signature.parameters).index(before)
        taken = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_default(kind), annotation=kind)
            for name, kind in get_type_hints(options, include_extras=True).items()
        ]
        vars(command)["__signature__"] = signature.replace(parameters=[*own[:place], *taken, *own[place:]])
        return command

    return decorated


def _default(kind: Any) -> bool | None:
    return False if get_args(kind)[0] is bool else None
