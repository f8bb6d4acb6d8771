"""Convert the scores of whole prompts to the JSON of a completion, in the words of OpenAI's interface.

A prompt's scores are those of its tokens behind the first one and, if a next token is wanted, of a placeholder behind
them: the most probable token in its place is the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from api.answers.presentation import ScoredJob, encode_slices
from scoring.conversion import check_possible
from scoring.error_codes import ErrorCode, RequestError
from scoring.layout import TopTokens
from scoring.tokenizing.tokenization import TextTokenizer


def encode_completion(scored: ScoredJob, tokenizer: TextTokenizer) -> bytes:
    """Return the response of ``/v1/completions``, encoded. Raises RequestError JOB_FAILED."""
    job = scored.job
    assert job.form is not None
    check_possible(scored.computed.scores)
    generated = job.form["max_tokens"] * job.total_items
    return scored.encode(
        {
            "id": scored.id,
            "object": "text_completion",
            "created": math.floor(scored.finished_at),
            "model": job.model_name,
            "choices": encode_slices([choice] for choice in _choices(scored, job.form, tokenizer)),
            "usage": {
                "prompt_tokens": job.prompt_tokens,
                "completion_tokens": generated,
                "total_tokens": job.prompt_tokens + generated,
                "prompt_tokens_details": {"cached_tokens": scored.cached_tokens},
            },
            "warnings": list(job.warnings),
        }
    )


def _choices(scored: ScoredJob, form: Mapping[str, Any], tokenizer: TextTokenizer) -> Iterator[dict[str, Any]]:
    continuations, targets = scored.computed.continuations, scored.computed.targets
    assert continuations is not None  # The store keeps them together.
    assert targets is not None
    if scored.job.options.top and targets.top is None and len(continuations):
        message = "a worker of the previous version scored this, which knows no most probable tokens; please repeat it"
        raise RequestError(ErrorCode.JOB_FAILED, message)
    # One list of values for each prompt: of its tokens but the first one, and last of what stands for the next token.
    stops = np.cumsum(continuations.lengths)[:-1]
    own, logprobs = np.split(continuations.tokens, stops), np.split(targets.token_logprobs, stops)
    top = targets.top or TopTokens(continuations.tokens, targets.token_logprobs)
    top_ids, top_logprobs = np.split(top.ids, stops), np.split(top.logprobs, stops)
    firsts = form.get("first_tokens", [])
    known = np.unique(np.concatenate([continuations.tokens, top.ids, np.array(firsts, np.int32)])).tolist()
    pieces = dict(zip(known, tokenizer.pieces(known), strict=True))
    for n in range(len(continuations)):
        ids, of_ids = own[n].tolist(), logprobs[n].tolist()
        if form["max_tokens"]:
            ids[-1], of_ids[-1] = int(top_ids[n][-1]), float(top_logprobs[n][-1])
        tops: list[dict[str, float] | None] = []
        for place, token in enumerate(ids):
            # Where two tokens are written alike, the more probable one is named.
            tops.append({pieces[token]: of_ids[place]})
            if form["logprobs"]:
                tops[-1] = {pieces[token]: of_ids[place], pieces[int(top_ids[n][place])]: float(top_logprobs[n][place])}
        if form["echo"]:
            ids, of_ids, tops = [firsts[n], *ids], [None, *of_ids], [None, *tops]
        written = [pieces[token] for token in ids]
        yield {
            "index": n,
            "text": tokenizer.decode(ids),
            "logprobs": None
            if form["logprobs"] is None
            else {
                "tokens": written,
                "token_logprobs": of_ids,
                "top_logprobs": tops,
                "text_offset": _offsets(written),
            },
            "finish_reason": "length",
        }


def _offsets(written: Sequence[str]) -> list[int]:
    """Return where each token begins in the text of all of them."""
    return list(accumulate(map(len, written[:-1]), initial=0)) if written else []
