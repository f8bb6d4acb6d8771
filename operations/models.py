"""List, add, change and retire models of the catalogue: ``python -m operations.models add triage --model PATH``."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoints.files import CheckpointError
from checkpoints.source import Contents, find_checkpoint
from jobs.catalogue import ListedModel, NewModel, list_models, no_such_model, put_models, retire_model
from jobs.store.database import Database
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_records
from scoring.served_model import ServedModel
from scoring.templates.template import SUFFIX
from scoring.templates.wording import TemplateError
from settings.catalogue import settings_of_model
from settings.errors.endings import in_one_line
from settings.scoring import ScoringSettings
from settings.slice import split_at_commas

COLUMNS = ("NAME", "VERSION", "MODEL", "REVISION", "CONTEXT", "ALIASES", "DEFAULT", "ADDED", "RETIRED")
OPTIONS = ("model", "model_revision", "template", "context_length", "adapter_folder")
"""The settings of a model that have an option. A file may give all of :data:`settings.catalogue.SETTABLE`."""

PATHS = ("model", "template", "adapters", "adapter_folder", "calibrations")
"""The settings that may be paths."""


def _run(database: Database, given: argparse.Namespace) -> int:
    match given.action:
        case "list":
            listed = list_models(database, retired=given.all)
        case "retire":
            listed = [retire_model(database, given.name)]
        case "apply":
            wanted = [_new(name, fields) for name, fields in _read(given.name).items()]
            listed = put_models(database, wanted, others_retire=True)
        case _:
            listed = put_models(database, [_new(given.name, _fields(list_models(database), given))])
    return print_records(COLUMNS, listed, _row, as_json=given.json)


def _fields(listed: list[ListedModel], given: argparse.Namespace) -> dict[str, Any]:
    """Return what is wanted of one model, in the form of a file: with ``set``, also what it has already."""
    before = next((model for model in listed if model.name == given.name), None)
    if given.action == "add" and before is not None:
        raise ValueError(f"there is a model {given.name!r} already; `scoreline models set` changes it")
    if given.action == "set" and before is None:
        raise no_such_model(given.name, [model.name for model in listed])
    options = {name: value for name, value in vars(given).items() if name in (*OPTIONS, "aliases", "default")}
    if before is None:
        return options
    kept = {**before.settings, "aliases": before.aliases, "default": before.is_default}
    if "model" in options:  # a revision is one of the model before
        kept.pop("model_revision", None)
    return kept | options


def _read(file: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the models that a file describes, by their names. file: its path; -: the input. Raises ValueError."""
    path = "the standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    models = found.get("models")
    if (
        not isinstance(models, dict)
        or set(found) != {"models"}
        or not all(isinstance(one, dict) for one in models.values())
    ):
        raise ValueError(f"{path} must have a table [models.NAME] for each model, and nothing else")
    return models


def _new(name: str, fields: Mapping[str, Any]) -> NewModel:
    """Return a model as it is to be listed: it must be served as the API would serve it. Raises ValueError."""
    given = {
        field: value for field, value in fields.items() if field not in ("aliases", "default") and value is not None
    }
    aliases, is_default = fields.get("aliases", ()), fields.get("default", False)
    if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError(f"{name}: aliases must be a list of names")
    if not isinstance(is_default, bool):
        raise ValueError(f"{name}: default must be true or false")
    scoring = settings_of_model(ScoringSettings(), name, given)
    for field, value in given.items():
        if field in PATHS and _is_path(field, str(value)):
            given[field] = str(Path(value).expanduser().resolve())  # API and workers may run elsewhere
    try:
        checkpoint = find_checkpoint(scoring.model, scoring.model_revision, Contents.DESCRIPTION)
        served = ServedModel.load(
            checkpoint,
            name=name,
            delimiter=scoring.multi_item_scoring_delimiter,
            context_length=scoring.context_length,
            template=scoring.template,
        )
    except (CheckpointError, TemplateError) as error:
        raise ValueError(f"{name}: {in_one_line(error)}") from None
    if checkpoint.commit is not None:
        given["model_revision"] = checkpoint.commit  # the branch may move on, and all processes serve one revision
    return NewModel(name, given, tuple(aliases), is_default, replace(served.card, version=None))


def _is_path(field: str, value: str) -> bool:
    """Return whether a value is the path of something that is there. A template may be called like a file beside it."""
    return Path(value).expanduser().exists() and (field != "template" or "/" in value or value.endswith(SUFFIX))


def _row(model: ListedModel) -> list[str]:
    return [
        model.name,
        str(model.version),
        str(model.settings["model"]),
        str(model.settings.get("model_revision", "-")),
        str(model.card.context_length),
        ", ".join(model.aliases) or "-",
        "yes" if model.is_default else "no",
        format_time(model.added_at),
        format_time(model.retired_at),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="scoreline models")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list").add_argument("--all", action="store_true")
    # What is not given is left out of the namespace, and stays as it is for the model.
    for name in ("add", "set"):
        change = actions.add_parser(name, argument_default=argparse.SUPPRESS)
        change.add_argument("--model")
        change.add_argument("--model-revision", "--revision", dest="model_revision")
        change.add_argument("--template")
        change.add_argument("--context-length", type=int)
        change.add_argument("--adapter-folder")
        change.add_argument("--aliases", type=split_at_commas)
        change.add_argument("--default", type=_yes_or_no)
    actions.add_parser("retire")
    actions.add_parser("apply")
    for name, action in actions.choices.items():
        if name != "list":
            action.add_argument("name")
        action.add_argument("--json", action="store_true", default=False)
    return parser


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"it is yes or no, not {text!r}")
    return text == "yes"


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(run_on_store(lambda database: _run(database, arguments)))
