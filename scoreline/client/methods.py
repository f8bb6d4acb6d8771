"""How an operation looks as a method of a client: its signature, its help, and what it says to unknown options."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from scoreline.client import options as kinds

P = ParamSpec("P")
T = TypeVar("T")


def checked(flow: Callable[P, T]) -> Callable[P, T]:
    """Return an operation that refuses unknown options when it is called, before anything is carried out."""
    names = {one.name for one in _parameters(flow)}

    @functools.wraps(flow)
    def operation(*args: P.args, **options: P.kwargs) -> T:
        if unknown := [name for name in options if name not in names]:
            raise TypeError(f"{flow.__name__}() got an unexpected keyword argument {unknown[0]!r}")
        return flow(*args, **options)

    return operation


def explained(method: Callable[P, T], flow: Callable[..., Any], returned: Mapping[str, str]) -> Callable[P, T]:
    """Return the method that carries out an operation, with the name, the signature and the help that a user sees.

    returned: what the method returns, by the name of what the operation is.
    """
    functools.update_wrapper(method, flow)
    service, *others = _parameters(flow)
    kind, _, value = str(flow.__annotations__["return"]).removesuffix("]").partition("[")
    vars(method)["__signature__"] = inspect.Signature(
        [service.replace(name="self", annotation=inspect.Parameter.empty), *others],
        return_annotation=_Written(returned[kind].format(value)),
    )
    names = {one.name for one in others}
    taken = [inspect.getdoc(one) or "" for one in kinds.EXPLAINED if one.__annotations__.keys() <= names]
    said, behind, example = (inspect.getdoc(flow) or "").partition("\n\n>>> ")
    method.__doc__ = "\n\n".join([said, *(one.partition("\n\n")[2] for one in taken)]) + behind + example
    return method


def _parameters(flow: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of an operation: each option of a kind that it takes stands by itself, at the end."""
    found = []
    for one in inspect.signature(flow).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            found.append(one.replace(annotation=_written(str(one.annotation), flow)))
            continue
        kind = getattr(kinds, str(one.annotation).removeprefix("Unpack[").removesuffix("]"))
        for name, reference in kind.__annotations__.items():
            text = reference.__forward_arg__
            default = False if text == "bool" else None
            annotation = _written(text, flow)
            found.append(inspect.Parameter(name, one.KEYWORD_ONLY, default=default, annotation=annotation))
    return found


class _Written(str):
    """A type as it is written in the source: ``help`` shows it without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _written(annotation: str, flow: Callable[..., Any]) -> _Written:
    """Return a type as text. A name that the modules of operations have for several types is replaced by these."""
    known = {**vars(kinds), **inspect.unwrap(flow).__globals__}

    def meaning(name: re.Match[str]) -> str:
        found = known.get(name[0])
        return re.sub(r"[\w.]+\.", "", str(found)) if isinstance(found, types.UnionType) else name[0]

    return _Written(re.sub(r"\w+", meaning, annotation))
