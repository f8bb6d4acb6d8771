"""EleutherAI's evaluation harness, with a Scoreline server as its model.

    pip install lm-eval
    scoreline up                                   # in another terminal
    python examples/lm_evaluation_harness.py --model scoreline --tasks TASK --include_path FOLDER

The options are those of the command ``lm_eval``. The model's own go into ``--model_args``, such as
``url=http://127.0.0.1:8000,concurrency=32``. What the harness asks for by log-likelihoods works: multiple choice, and
the perplexity of texts. Tasks for which a model must generate text do not, because the server generates none.

All continuations of one context are one call, so that they share its work, and many calls are under way at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from scoreline import AsyncClient, Client

Likelihood = tuple[float, bool]
"""The log-probability of a continuation, and whether the model would write it."""


@register_model("scoreline")
class ScorelineLM(LM):
    """Asks a server for likelihoods."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        concurrency: int = 32,
        prefix_token_id: int | None = None,
        **_: object,
    ) -> None:
        """concurrency: calls that are under way at the same time.

        prefix_token_id: what stands before a text without a context; None: the beginning token that the tokenizer adds.
        """
        super().__init__()
        self._server: dict[str, Any] = {"url": url, "api_key": api_key}
        self._concurrency = int(concurrency)
        with Client(**self._server) as client:
            self._longest = client.models()[0].max_model_len
            plain, whole = (client.tokenize("a", add_special_tokens=added) for added in (False, True))
        self._prefix = [] if whole == plain else whole[:1]
        if prefix_token_id is not None:
            self._prefix = [int(prefix_token_id)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Likelihood]:
        """Return the likelihood of each continuation behind its context."""
        places: dict[str, list[int]] = {}
        continuations: list[str] = []
        for place, request in enumerate(requests):
            context, continuation = request.args
            # In the harness, blanks at the end of a context belong to the continuation.
            kept = context.rstrip()
            continuations.append(context[len(kept) :] + continuation)
            places.setdefault(kept, []).append(place)
        texts = [(context, [continuations[place] for place in of_context]) for context, of_context in places.items()]
        answers = asyncio.run(
            self._ask([self._behind_prefix(items) if not query else (query, items) for query, items in texts])
        )
        found: dict[int, Likelihood] = {}
        for of_context, answer in zip(places.values(), answers, strict=True):
            found |= zip(of_context, answer, strict=True)
        return [found[place] for place in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text. One that is longer than the context is scored in windows."""
        asked: list[Asked] = []
        counts = []
        for tokens in self._tokens([request.args[0] for request in requests]):
            windows = get_rolling_token_windows(
                token_list=tokens, prefix_token=self._required_prefix()[0], max_seq_len=self._longest - 1, context_len=1
            )
            split = [make_disjoint_window(window) for window in windows]
            asked += [(list(context), [list(targets)]) for context, targets in split]
            counts.append(len(split))
        answers = iter(asyncio.run(self._ask(asked)))
        return [sum(next(answers)[0][0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Refuse: the server generates no text."""
        raise NotImplementedError(
            "a Scoreline server scores texts, and generates none: choose tasks of log-likelihoods"
        )

    async def _ask(self, asked: Sequence[Asked]) -> list[list[Likelihood]]:
        """Return the likelihoods of items behind queries."""
        places = asyncio.Semaphore(self._concurrency)
        async with AsyncClient(**self._server) as client:

            async def one(query: str | list[int], items: Any) -> list[Likelihood]:
                async with places:
                    found = await client.likelihood(query, items)
                return [
                    (-float("inf") if sum_ is None else sum_, greedy)
                    for sum_, greedy in zip(found.logprob, found.is_greedy, strict=True)
                ]

            return await asyncio.gather(*(one(*each) for each in asked))

    def _behind_prefix(self, texts: list[str]) -> Asked:
        return self._required_prefix(), self._tokens(texts)

    def _required_prefix(self) -> list[int]:
        if not self._prefix:
            raise ValueError("the tokenizer adds no beginning token: give prefix_token_id for texts without a context")
        return self._prefix

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        with Client(**self._server) as client:
            return [client.tokenize(text) for text in texts]


Asked = tuple[str | list[int], list[str] | list[list[int]]]
"""A query and the items behind it, as texts or as token ids."""


if __name__ == "__main__":
    cli_evaluate()
