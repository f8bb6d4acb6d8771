"""Tokenize the text in a body. This blocks on the processor, so call it in a thread or in another process."""

from __future__ import annotations

from api.answers.presentation import encode
from api.answers.schemas.jobs import TokenizeBody
from api.reading import ReadingContext
from api.requests.fields import check_fields
from api.requests.sender import Sender
from api.requests.submission import parse_object
from scoring.error_codes import invalid
from scoring.limits import Limit, check_characters
from scoring.values import parse_flag


def tokenize_text(reading: ReadingContext, data: bytes, sender: Sender) -> bytes:
    """Return the answer of ``POST /v1/tokenize``. Raises RequestError."""
    body = parse_object(data)
    check_fields(body, TokenizeBody.model_fields, {}, strict=sender.is_strict)
    reading = reading.of_model(body.get("model"), sender.principal.policy)
    reading.adapter_of(body.get("model"))
    text = body.get("text")
    if not isinstance(text, str):
        raise invalid("text must be a string", "text")
    most = reading.limits.max_tokenize_characters
    check_characters(text, Limit("max_tokenize_characters", most), "text")
    add_special_tokens = parse_flag(body.get("add_special_tokens"), "add_special_tokens")
    ids = reading.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return encode(
        {
            "model": reading.card.name,
            "tokens": ids,
            "pieces": reading.tokenizer.pieces(ids),
            "count": len(ids),
            "max_model_len": reading.card.context_length,
        }
    )
