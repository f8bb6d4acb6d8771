"""Render the Jinja templates of a checkpoint, which may be anybody's: in a sandbox, and within limits.

A template can read what it is given and nothing else. It may take so many steps and write so much text, and no value
on the way may be longer: a template that loops for ever, or that doubles a text again and again, is an error.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import date
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scoring.tokenizing.control_tokens import END, START

MOST_STEPS, STEPS_OF_OPTION = 20_000, 20
"""The most rounds of loops, calls and operators that one rendering may take, and how many more for each option."""

MOST_SECONDS = 2.0
"""The processor's time that one rendering may take, however busy the machine is. It is looked at with every step."""

MOST_CHARACTERS = 2**24
"""The most characters that a template may write, or make on the way."""

MOST_WIDTH = 10_000
"""The largest number that a function, a method or a filter may be given, such as the width of a text."""

_WIDE = re.compile(r"[0-9]{5}|\*")
"""What a text has that is a form for others, and may make them longer than :data:`MOST_WIDTH`."""

_TODAY = date(2024, 7, 26)
"""What templates are told of the date: the day that those of Llama name where nobody tells them one. With the present
day, equal requests would have other prompts tomorrow, and other scores.
"""

_STEP, _JOIN = "__step__", "__join__"


class RenderingError(Exception):
    """A template that can't be read or rendered. The message says why, and is for the operator."""


class _Budget:
    """What is left to one rendering."""

    def __init__(self, options: int) -> None:
        self._steps = MOST_STEPS + STEPS_OF_OPTION * options
        self._until = time.thread_time() + MOST_SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0 or time.thread_time() > self._until:
            raise RenderingError("it takes too long: it may loop for ever")


_budget: ContextVar[_Budget] = ContextVar("budget")


def _step() -> None:
    _budget.get().step()


def _round() -> str:
    """Do nothing: the call itself is counted."""
    return ""


def _bounded(value: Any) -> Any:
    """Return a value, unless it is a text or a list that is too long."""
    if isinstance(value, str | list | tuple) and len(value) > MOST_CHARACTERS:
        raise RenderingError(f"it makes more than {MOST_CHARACTERS} characters")
    return value


def _check_arguments(arguments: Iterable[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, int | float) and not -MOST_WIDTH <= argument <= MOST_WIDTH:
            raise RenderingError(f"the number {argument} is too large for an argument")


def _check_form(form: str) -> None:
    if _WIDE.search(form):
        raise RenderingError("a form for texts may not say how wide they are")


def _text(value: Any) -> Any:
    """Return what a template writes of a value."""
    return _marked(str(value)) if isinstance(value, list | dict | tuple) else value


def _marked(text: str) -> str:
    """Return a text with the marks of control tokens. Python escapes them where it writes a list or an object."""
    return text.replace(_escaped(START), START).replace(_escaped(END), END)


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def _join(*parts: Any) -> str:
    texts = [str(_text(part)) for part in parts]
    _bounded_sum(sum(map(len, texts)))
    return "".join(texts)


def _bounded_sum(characters: int) -> None:
    if characters > MOST_CHARACTERS:
        raise RenderingError(f"it makes more than {MOST_CHARACTERS} characters")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts steps, and refuses what makes a long value of short ones without a step."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    _bounded_sum(len(one) * max(0, other))
        elif operator == "%" and isinstance(left, str):
            _check_form(left)
        elif operator == "**":
            raise RenderingError("the operator ** is not allowed")
        made = super().call_binop(context, operator, left, right)
        return _bounded(_marked(made) if operator == "%" and isinstance(made, str) else made)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja names them
        _step()
        _check_arguments((*args, *kwargs.values()))
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_form(value.__self__)
        return None if wrapped is None else lambda *args, **kwargs: _marked(wrapped(*args, **kwargs))


class _Generation(jinja2.ext.Extension):
    """Reads the block ``generation``, by which chat templates mark what the assistant says. It is plain text here."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _format(form: str, *values: Any) -> str:
    _check_form(form)
    return _marked(form % values)


def _raise_exception(message: str) -> None:
    raise RenderingError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    _check_arguments([indent])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def _environment() -> _Sandbox:
    found = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols], finalize=_text
    )
    found.filters |= {"tojson": _to_json, "string": lambda value: str(_text(value)), "format": _format}
    found.filters = {name: _bounded_filter(function) for name, function in found.filters.items()}
    del found.globals["lipsum"]
    found.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _TODAY.strftime,
        _STEP: _round,
        _JOIN: _join,
    }
    return found


def _bounded_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps by what Jinja knows what to pass to it
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _step()
        _check_arguments((*args, *kwargs.values()))
        return _bounded(function(*args, **kwargs))

    return bounded


class Rendering:
    """A template that was read, and that can be rendered any number of times."""

    def __init__(self, source: str) -> None:
        """Read a template. Raises RenderingError."""
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
            """The names that the template reads and does not set itself."""
            literals = {node.data for node in tree.find_all(jinja2.nodes.TemplateData)}
            literals |= {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
            self.literals = "\0".join(sorted(literals))
            """All texts that the template itself holds, NULs between them."""
            self._template = environment.from_string(_counted(tree))
        except (jinja2.TemplateError, RecursionError) as error:
            raise RenderingError(f"it can't be read: {error}") from error

    def render(self, values: Mapping[str, Any], options: int = 0) -> str:
        """Return the text that the template writes, given the values of its variables. Raises RenderingError.

        options: how many there are to write, each of which adds to the steps that it may take.
        """
        token = _budget.set(_Budget(options))
        try:
            pieces, characters = [], 0
            for piece in self._template.generate(values):
                characters += len(piece)
                _bounded_sum(characters)
                pieces.append(piece)
            return "".join(pieces)
        except RenderingError:
            raise
        except Exception as error:  # a template may do anything wrong, such as divide by zero
            raise RenderingError(f"it can't be rendered: {error}") from error
        finally:
            _budget.reset(token)


def _counted(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """Change a template so that it counts rounds of loops and calls of macros, and bounds what ``~`` makes."""
    for node in tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)):
        node.body.insert(0, jinja2.nodes.ExprStmt(_call(_STEP, [])))  # type: ignore[attr-defined]
    for block in tree.find_all(jinja2.nodes.AssignBlock):
        block.filter = jinja2.nodes.Filter(block.filter, "string", [], [], None, None)  # which bounds the text
    _replace_joins(tree)
    tree.set_lineno(1)
    return tree


def _replace_joins(node: jinja2.nodes.Node) -> None:
    for name, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, name, [_replaced(one) for one in value])
        elif isinstance(value, jinja2.nodes.Node):
            setattr(node, name, _replaced(value))


def _replaced(value: Any) -> Any:
    if isinstance(value, jinja2.nodes.Node):
        _replace_joins(value)
        if isinstance(value, jinja2.nodes.Concat):
            return _call(_JOIN, value.nodes)
    return value


def _call(name: str, arguments: list[jinja2.nodes.Expr]) -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.Name(name, "load"), arguments, [], None, None)


@functools.lru_cache(maxsize=16)
def rendering_of(source: str) -> Rendering:
    """Return the rendering of a template, which is read once. Raises RenderingError."""
    return Rendering(source)
