"""The options of the client and of the command are the fields of the service's bodies."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from api.answers.items.request_schemas import JobFields, LikelihoodFields, ScoreFields
from scoreline.client.options import JobOptions, LikelihoodOptions, ScoreOptions
from scoreline.commands.options import ScoringOptions

BODIES: dict[type, type[BaseModel]] = {
    ScoreOptions: ScoreFields,
    LikelihoodOptions: LikelihoodFields,
    JobOptions: JobFields,
}
OF_METHODS = {"query", "items", "dry_run"}
"""Fields of bodies that are parameters of methods, or methods, and no options."""


def words_of(kind: Any) -> set[str]:
    """Return the words that a type allows in place of any text."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return {word for part in get_args(kind) for word in words_of(part)}


@pytest.mark.parametrize("options", BODIES, ids=lambda options: options.__name__)
def test_the_options_are_the_fields_with_the_same_words(options: type) -> None:
    fields = get_type_hints(BODIES[options])
    found = get_type_hints(options)
    assert set(found) == set(BODIES[options].model_fields) - OF_METHODS
    assert {name: words_of(kind) for name, kind in found.items()} == {name: words_of(fields[name]) for name in found}


def test_the_options_of_commands_are_some_of_the_clients() -> None:
    known = get_type_hints(ScoreOptions)
    assert {name: known[name] for name in get_type_hints(ScoringOptions)} == get_type_hints(ScoringOptions)
