"""Fields of other systems that would change scores and that this service does not have. They are refused, not ignored.

docs/coming-from.md has a table of the fields of each of these systems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scoring.error_codes import ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is refused."""

    advice: str = ""  # what to send instead
    harmless: tuple[object, ...] = ()  # the values that ask for what is done here in any case; null is always one


_QUERY_AND_ITEMS = "send query and items"
_NO_TEXT = "no text is generated here"
_NOTHING_DRAWN = "nothing is drawn at random here"
_UNCHANGED = "probabilities are the model's own"
_TRUNCATION = "nothing is cut here; split what is too long"

SCORE: Mapping[str, Refused] = {
    # SGLang
    "return_pooled_hidden_states": Refused(harmless=(False,)),
    "embed_override_token_id": Refused(),
    "query_embed_overrides": Refused(),
    "item_embed_overrides": Refused(),
    # vLLM
    "top_k": Refused("all tokens of the vocabulary count", harmless=(0, -1)),
    "top_p": Refused("all tokens of the vocabulary count", harmless=(1,)),
    "add_special_tokens": Refused("send token ids to have none", harmless=(True,)),
    "truncate_prompt_tokens": Refused(_TRUNCATION),
    "text_1": Refused(_QUERY_AND_ITEMS),
    "text_2": Refused(_QUERY_AND_ITEMS),
    "queries": Refused(_QUERY_AND_ITEMS),
    "documents": Refused(f"{_QUERY_AND_ITEMS}, or call /v1/rerank"),
    # OpenAI
    "messages": Refused("write the chat format into query_template and item_template"),
    "prompt": Refused(_QUERY_AND_ITEMS),
    "logit_bias": Refused(harmless=({},)),
}
"""The fields that ``/v1/score`` and ``/v1/jobs`` refuse."""

_NO_LABELS = "a likelihood has no labels: call /v1/score"
_WHOLE_TEXT = "send the whole text as query and items"

LIKELIHOOD: Mapping[str, Refused] = {
    **SCORE,
    "labels": Refused(_NO_LABELS),
    "label_token_ids": Refused(_NO_LABELS),
    "label_token_sequences": Refused(_NO_LABELS),
    "label_scoring": Refused(_NO_LABELS),
    "label_normalization": Refused("the answer has the number of tokens to divide by", harmless=("none",)),
    "apply_softmax": Refused(_NO_LABELS, harmless=(False,)),
    "temperature": Refused(_NO_LABELS, harmless=(1,)),
    "return_logprobs": Refused("send return_token_logprobs", harmless=(False,)),
    "return_logits": Refused("send return_token_logprobs", harmless=(False,)),
    "calibration": Refused(_NO_LABELS),
    "threshold": Refused(_NO_LABELS),
    "item_first": Refused("an item stands behind the query", harmless=(False,)),
    "template": Refused(_WHOLE_TEXT),
    "query_template": Refused(_WHOLE_TEXT),
    "item_template": Refused(_WHOLE_TEXT),
    "instruction": Refused(_WHOLE_TEXT),
}
"""The fields that ``/v1/likelihood``, and jobs of that kind, refuse."""

RERANK: Mapping[str, Refused] = {
    # Cohere
    "rank_fields": Refused("send each document as one text"),
    "max_chunks_per_doc": Refused("send chunks as documents"),
    "relevant_spans": Refused(harmless=({"mode": "disabled"},)),
    # Voyage
    "top_k": Refused("send top_n", harmless=(0, -1)),
    "truncation": Refused("max_tokens_per_doc cuts documents", harmless=(False,)),
    # SGLang
    "instruct": Refused("send instruction"),
    # vLLM
    "truncate_prompt_tokens": Refused("max_tokens_per_doc cuts documents"),
    "max_tokens_per_query": Refused("no query is cut here", harmless=(0,)),
    "chat_template_kwargs": Refused("send instruction", harmless=({},)),
    "use_activation": Refused("a template decides what relevance is", harmless=(True,)),
    "activation": Refused("a template decides what relevance is", harmless=(True,)),
    # TEI
    "texts": Refused("send documents"),
    "raw_scores": Refused("a template decides what relevance is", harmless=(False,)),
    "truncate": Refused("max_tokens_per_doc cuts documents", harmless=(False,)),
}
"""The fields that ``/v1/rerank`` refuses."""

_DOCUMENTS = "a list has no place for it: send documents in place of texts"

TEXTS: Mapping[str, Refused] = {
    **{name: field for name, field in RERANK.items() if name not in ("texts", "raw_scores", "truncate")},
    "documents": Refused("texts are ranked"),
    "return_documents": Refused("send return_text", harmless=(False,)),
    "calibration": Refused(_DOCUMENTS),
    "threshold": Refused(_DOCUMENTS),
    "return_provenance": Refused(_DOCUMENTS, harmless=(False,)),
    "return_receipt": Refused(_DOCUMENTS, harmless=(False,)),
}
"""The fields that ``/rerank`` refuses beside ``texts``, to which its answer is a list alone."""

_LABELS = "call /v1/score with label_token_ids"

COMPLETION: Mapping[str, Refused] = {
    # OpenAI
    "n": Refused(_NOTHING_DRAWN, harmless=(1,)),
    "best_of": Refused(_NOTHING_DRAWN, harmless=(1,)),
    "stream": Refused("the answer comes as a whole", harmless=(False,)),
    "stream_options": Refused("the answer comes as a whole"),
    "stop": Refused(_NO_TEXT, harmless=("", [])),
    "suffix": Refused(_NO_TEXT, harmless=("",)),
    "top_p": Refused(_NOTHING_DRAWN, harmless=(1,)),
    "presence_penalty": Refused(_UNCHANGED, harmless=(0,)),
    "frequency_penalty": Refused(_UNCHANGED, harmless=(0,)),
    "logit_bias": Refused(_UNCHANGED, harmless=({},)),
    # vLLM
    "top_k": Refused(_NOTHING_DRAWN, harmless=(0, -1)),
    "min_p": Refused(_NOTHING_DRAWN, harmless=(0,)),
    "min_tokens": Refused(_NO_TEXT, harmless=(0,)),
    "repetition_penalty": Refused(_UNCHANGED, harmless=(1,)),
    "use_beam_search": Refused(_NO_TEXT, harmless=(False,)),
    "prompt_logprobs": Refused("send echo and logprobs"),
    "prompt_embeds": Refused("send texts or token ids"),
    "add_special_tokens": Refused("send token ids to have none", harmless=(True,)),
    "truncate_prompt_tokens": Refused(_TRUNCATION),
    "return_tokens_as_token_ids": Refused("tokens are texts", harmless=(False,)),
    "response_format": Refused(_NO_TEXT),
    "structured_outputs": Refused(_NO_TEXT),
    **dict.fromkeys(("guided_choice", "guided_json", "guided_regex", "guided_grammar"), Refused(_NO_TEXT)),
    "stop_token_ids": Refused(_NO_TEXT, harmless=([],)),
    "logits_processors": Refused(_UNCHANGED, harmless=([],)),
    "watermarking": Refused(_UNCHANGED, harmless=(False,)),
    "bad_words": Refused(_UNCHANGED, harmless=([],)),
    "allowed_token_ids": Refused(_LABELS),
    "logprob_token_ids": Refused(_LABELS),
    # SGLang
    "regex": Refused(_NO_TEXT),
    "json_schema": Refused(_NO_TEXT),
    "ebnf": Refused(_NO_TEXT),
    "stop_regex": Refused(_NO_TEXT, harmless=("", [])),
    "custom_logit_processor": Refused(_UNCHANGED),
    "lora_path": Refused("name the adapter in model"),
}
"""The fields that ``/v1/completions`` refuses."""

BATCH: Mapping[str, Refused] = {
    # OpenAI
    "output_expires_after": Refused("the files of a batch are deleted with it"),
}
"""The fields that ``/v1/batches`` refuses."""


def refuse(body: Mapping[str, object], refused: Mapping[str, Refused]) -> None:
    """Raise RequestError UNSUPPORTED_PARAMETER for the first of these fields in a body whose value is not harmless."""
    for name, value in body.items():
        if name not in refused or value is None:
            continue
        field = refused[name]
        # In Python, True and 1 are equal.
        if any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in field.harmless):
            continue
        advice = f"; {field.advice}" if field.advice else ""
        raise RequestError(ErrorCode.UNSUPPORTED_PARAMETER, f"{name} is not supported here{advice}", param=name)
