"""The page of the Python client: its methods, what they return and what they raise, out of their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import scoreline
from docs.site.reference.docstrings import as_markdown
from docs.site.reference.tables import code, table
from scoreline import AsyncClient, Client, ScorelineError

WIDEST_SIGNATURE = 100
INTRODUCTION = """\
# The client's classes and methods

[The Python client](../client.md) shows how these are used together. All names are imported from `scoreline`.
Times are Unix seconds."""


def page() -> str:
    """Return the page: both clients, the objects that they return, errors, functions, and names of types."""
    exported = {name: getattr(scoreline, name) for name in scoreline.__all__}
    classes = {name: one for name, one in exported.items() if inspect.isclass(one)}
    errors = {name: one for name, one in classes.items() if issubclass(one, ScorelineError)}
    objects = {name: one for name, one in classes.items() if name not in errors and one not in (Client, AsyncClient)}
    functions = {name: one for name, one in exported.items() if inspect.isfunction(one)}
    others = {name: one for name, one in exported.items() if name not in classes and name not in functions}
    rows = [
        (code(name), code(one.__bases__[0].__name__), _said(one).replace("\n", " "))
        for name, one in sorted(errors.items(), key=lambda entry: _line_of(entry[1]))
        if one is not ScorelineError
    ]
    parts = [
        INTRODUCTION,
        *_client("Client", Client),
        "## AsyncClient",
        _said(AsyncClient),
        "Its methods are those of [Client](#client), with the same options. They are awaited, and what is iterated is "
        "iterated with `async for`.",
        "## What they return",
        *(part for name, one in objects.items() for part in _object(name, one)),
        "## Errors",
        "### ScorelineError",
        _said(ScorelineError),
        _attributes_of_errors(),
        "### Kinds of errors",
        table(("error", "is also a", "what has happened"), rows),
        "## Functions",
        *(part for name, one in functions.items() for part in _function(name, one)),
        "## Names of types",
        table(("name", "what it is"), [(code(name), _alias(one)) for name, one in others.items()]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def methods() -> dict[str, Any]:
    """Return the public methods of the client."""
    return {name: one for name, one in vars(Client).items() if inspect.isfunction(one) and not name.startswith("_")}


def _client(name: str, client: type) -> Iterator[str]:
    yield f"## {name}"
    yield _said(client)
    yield _signature(name, inspect.signature(client))
    yield _explained(client.__init__)  # type: ignore[misc]
    for method_name, method in methods().items():
        yield from _function(f"Client.{method_name}", method)


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### {name}"
    yield _signature(name.partition(".")[2] or name, inspect.signature(function))
    yield _explained(function)


def _explained(function: Any) -> str:
    return as_markdown(inspect.getdoc(function) or "", inspect.signature(function).parameters)


def _signature(name: str, signature: inspect.Signature) -> str:
    """Return a signature as code, on several lines if it is long."""
    given = [one for one in signature.parameters.values() if one.name != "self"]
    returned = signature.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, "None", None) else f" -> {returned}"
    words, last = [], None
    for one in given:
        if one.kind is one.KEYWORD_ONLY and last not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            words.append("*")
        words.append(str(one.replace(annotation=_Bare(one.annotation))))
        last = one.kind
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > WIDEST_SIGNATURE:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"
    return f"```python\n{line}\n```"


class _Bare:
    """An annotation that is written as it stands in the source, without quotes."""

    def __init__(self, annotation: object) -> None:
        self._text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self._text


def _object(name: str, one: type) -> Iterator[str]:
    yield f"### {name}"
    yield _said(one)
    rows = [(code(field), code(annotation), meaning) for field, annotation, meaning in _fields(one)]
    if rows:
        yield table(("attribute", "type", "what it is"), rows)
    for method, function in vars(one).items():
        if inspect.isfunction(function) and not method.startswith("_") and dataclasses.is_dataclass(one):
            yield _signature(f"{name}.{method}", inspect.signature(function))
            yield _explained(function)


def _fields(one: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the type and the remark of each attribute of a class, as its source has them."""
    source = textwrap.dedent(inspect.getsource(one))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            _, _, remark = lines[(statement.end_lineno or 1) - 1].partition("  # ")
            yield statement.target.id, ast.unparse(statement.annotation), remark
        elif isinstance(statement, ast.FunctionDef) and any(
            isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in statement.decorator_list
        ):
            returned = ast.unparse(statement.returns) if statement.returns else ""
            yield statement.name, returned, (ast.get_docstring(statement) or "").replace("\n", " ")


def _line_of(error: type) -> list[str]:
    """Return the names of the errors from the most general one to this one, so that a table can be in this order."""
    return [base.__name__ for base in reversed(error.__mro__) if issubclass(base, ScorelineError)]


def _attributes_of_errors() -> str:
    source = inspect.getsource(ScorelineError)
    found = re.findall(r"self\.(\w+) = \S+(?:  # (.*))?$", source, re.MULTILINE)
    return table(("attribute", "what it is"), [(code(name), remark) for name, remark in found])


def _said(one: type) -> str:
    """Return the docstring of a class itself, which may have none."""
    return as_markdown(inspect.cleandoc(one.__dict__.get("__doc__") or ""))


def _alias(one: Any) -> str:
    if typing.get_origin(one) is typing.Literal:
        return ", ".join(code(repr(value)) for value in typing.get_args(one))
    return " or ".join(f"[{member.__name__}](#{member.__name__.lower()})" for member in typing.get_args(one))
