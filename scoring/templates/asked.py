"""Find the wording that a request asks for: that of a template that it names, or that of its own texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import quote
from scoring.templates.known import require_fit
from scoring.templates.template import Template
from scoring.templates.wording import Piece, Place, TemplateError, Wording, has_place, read_pieces
from scoring.tokenizing.tokenization import TextTokenizer

TEMPLATE_FIELDS = frozenset({"template", "query_template", "item_template", "instruction"})
"""The fields of a body that this module reads."""


def invalid_template(message: str, param: str) -> RequestError:
    """Return the error for a template that can't be used."""
    return RequestError(ErrorCode.INVALID_TEMPLATE, message, param=param)


def find_template(body: Mapping[str, object], templates: Mapping[str, Template]) -> Template | None:
    """Return the template that a request names, or None. Raises RequestError.

    A name may end with ``@`` and the digest that the template must have.
    """
    name = _text(body, "template")
    if name is None or name in templates:
        return None if name is None else templates[name]
    name, _, digest = name.rpartition("@")
    if name not in templates:
        asked = quote(name or digest)
        raise invalid_template(f"there is no template {asked}; there are {', '.join(templates) or 'none'}", "template")
    if templates[name].digest != digest:
        raise invalid_template(
            f"the template {name} was changed: its digest is {templates[name].digest}, not {quote(digest)}", "template"
        )
    return templates[name]


def wording_of(
    body: Mapping[str, object], template: Template | None, *, text: bool, item_first: bool
) -> Wording | None:
    """Return the wording that a request asks for, or None if query and item are the whole text.

    template: the one that it names. text: whether query and items are texts. Raises RequestError.
    """
    given = {name: _text(body, name) for name in ("query_template", "item_template")}
    named = [name for name, value in given.items() if value is not None]
    instruction = _text(body, "instruction")
    if template is not None and named:
        raise invalid(f"give either template or {' and '.join(named)}, not both", named[0])
    if template is None and not named:
        if instruction is not None:
            raise invalid_template("an instruction needs a template with a place for it", "instruction")
        return None
    first = "template" if template is not None else named[0]
    if not text:
        raise invalid_template(f"{first} is for texts, and query and items are token ids", first)
    if item_first:
        raise invalid_template(f"{first} decides what comes first, so it can't be used with item_first", first)
    if template is not None:
        return wording_by(template, instruction)
    return Wording(
        query=_query_pieces(given["query_template"], instruction),
        item=_pieces(given["item_template"], "item_template", Place.ITEM),
        instruction=instruction or "",
        sent_characters=sum(len(text) for text in (*given.values(), instruction) if text is not None),
    )


def wording_by(template: Template, instruction: str | None) -> Wording:
    """Return the wording of a template with a client's instruction, if there is one. Raises RequestError."""
    try:
        return template.wording(instruction)
    except TemplateError as error:
        raise invalid_template(f"the template {template.name} can't be used so: {error}", "instruction") from None


def check_fit(template: Template, tokenizer: TextTokenizer, *, has_classes: bool) -> None:
    """Raise RequestError if a template was made for other models than the one with this tokenizer."""
    try:
        require_fit(template, tokenizer, has_classes=has_classes)
    except TemplateError as error:
        raise invalid_template(str(error), "template") from None


def _query_pieces(text: str | None, instruction: str | None) -> tuple[Piece, ...]:
    pieces = _pieces(text, "query_template", Place.QUERY, [Place.INSTRUCTION])
    if has_place(pieces, Place.INSTRUCTION) and instruction is None:
        raise invalid_template("query_template has the place {instruction}, and there is no instruction", "instruction")
    if instruction is not None and not has_place(pieces, Place.INSTRUCTION):
        raise invalid_template("there is an instruction, and query_template has no place for it", "instruction")
    return pieces


def _pieces(text: str | None, name: str, place: Place, allowed: Sequence[Place] = ()) -> tuple[Piece, ...]:
    try:
        return read_pieces(f"{{{place.value}}}" if text is None else text, place, allowed)
    except TemplateError as error:
        raise invalid_template(f"{name}: {error}", name) from None


def _text(body: Mapping[str, object], name: str) -> str | None:
    value = body.get(name)
    if not isinstance(value, str | None):
        raise invalid(f"{name} must be a string", name)
    return value
