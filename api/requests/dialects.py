"""Fields of other systems that would change scores and that this service does not have. They are refused, not ignored.

docs/coming-from.md has a table of the fields of each of these systems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scoring.error_codes import ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class Foreign:
    """A field that is refused."""

    advice: str = ""  # what to send instead
    harmless: tuple[object, ...] = ()  # the values that ask for what is done here in any case; null is always one


_QUERY_AND_ITEMS = "send query and items"
_TRUNCATION = "nothing is cut here; split what is too long"

SCORE: Mapping[str, Foreign] = {
    # SGLang
    "return_pooled_hidden_states": Foreign(harmless=(False,)),
    "embed_override_token_id": Foreign(),
    "query_embed_overrides": Foreign(),
    "item_embed_overrides": Foreign(),
    # vLLM
    "top_k": Foreign("all tokens of the vocabulary count", harmless=(0, -1)),
    "top_p": Foreign("all tokens of the vocabulary count", harmless=(1,)),
    "add_special_tokens": Foreign("send token ids to have none", harmless=(True,)),
    "truncate_prompt_tokens": Foreign(_TRUNCATION),
    "text_1": Foreign(_QUERY_AND_ITEMS),
    "text_2": Foreign(_QUERY_AND_ITEMS),
    "queries": Foreign(_QUERY_AND_ITEMS),
    "documents": Foreign(f"{_QUERY_AND_ITEMS}, or call /v1/rerank"),
    # OpenAI
    "messages": Foreign("write the chat format into query_template and item_template"),
    "prompt": Foreign(_QUERY_AND_ITEMS),
    "logit_bias": Foreign(harmless=({},)),
}
"""The fields that ``/v1/score`` and ``/v1/jobs`` refuse."""

_NO_LABELS = "a likelihood has no labels: call /v1/score"
_WHOLE_TEXT = "send the whole text as query and items"

LIKELIHOOD: Mapping[str, Foreign] = {
    **SCORE,
    "labels": Foreign(_NO_LABELS),
    "label_token_ids": Foreign(_NO_LABELS),
    "label_token_sequences": Foreign(_NO_LABELS),
    "label_scoring": Foreign(_NO_LABELS),
    "label_normalization": Foreign("the answer has the number of tokens to divide by", harmless=("none",)),
    "apply_softmax": Foreign(_NO_LABELS, harmless=(False,)),
    "temperature": Foreign(_NO_LABELS, harmless=(1,)),
    "return_logprobs": Foreign("send return_token_logprobs", harmless=(False,)),
    "return_logits": Foreign("send return_token_logprobs", harmless=(False,)),
    "item_first": Foreign("an item stands behind the query", harmless=(False,)),
    "template": Foreign(_WHOLE_TEXT),
    "query_template": Foreign(_WHOLE_TEXT),
    "item_template": Foreign(_WHOLE_TEXT),
    "instruction": Foreign(_WHOLE_TEXT),
}
"""The fields that ``/v1/likelihood``, and jobs of that kind, refuse."""

RERANK: Mapping[str, Foreign] = {
    # Cohere
    "rank_fields": Foreign("send each document as one text"),
    "max_chunks_per_doc": Foreign("send chunks as documents"),
    # vLLM
    "truncate_prompt_tokens": Foreign("max_tokens_per_doc cuts documents"),
    "use_activation": Foreign("a template decides what relevance is", harmless=(True,)),
    "activation": Foreign("a template decides what relevance is", harmless=(True,)),
    # TEI
    "texts": Foreign("send documents"),
    "raw_scores": Foreign("a template decides what relevance is", harmless=(False,)),
    "truncate": Foreign("max_tokens_per_doc cuts documents", harmless=(False,)),
}
"""The fields that ``/v1/rerank`` refuses."""


BATCH: Mapping[str, Foreign] = {
    # OpenAI
    "output_expires_after": Foreign("the files of a batch are deleted with it"),
}
"""The fields that ``/v1/batches`` refuses."""


def refuse_foreign(body: Mapping[str, object], foreign: Mapping[str, Foreign]) -> None:
    """Raise RequestError UNSUPPORTED_PARAMETER for the first of these fields in a body whose value is not harmless."""
    for name, value in body.items():
        if name not in foreign or value is None:
            continue
        field = foreign[name]
        # In Python, True and 1 are equal.
        if any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in field.harmless):
            continue
        advice = f"; {field.advice}" if field.advice else ""
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, f"{name} is not supported here{advice}", param=name)
