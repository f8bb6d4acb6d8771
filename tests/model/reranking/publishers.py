"""The relevance of pairs as the publishers of rerankers compute it, with HuggingFace's models. Needs torch.

The prompts are tokenized in the parts in which the publishers' code does it: Qwen3-Reranker's model card in three, and
the library mxbai-rerank 0.1.6 line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.model.reranking.rerankers import INSTRUCTION, Reference, pairs

Encode = Callable[[str], list[int]]

_SYSTEM_OF_QWEN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_DEFAULT_OF_QWEN = "Given a web search query, retrieve relevant passages that answer the query"
_SYSTEM_OF_MXBAI = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
_TASK_OF_MXBAI = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"


def reference(directory: Path, name: str) -> Reference:
    """Return the relevance of all pairs, computed in float32, each pair alone and unpadded."""
    encode = _encoder(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.train(False)
    ids_of, relevance_of = _PUBLISHERS[name]

    def relevance(query: str, document: str, instruction: str | None) -> float:
        logits = model(torch.tensor([ids_of(encode, query, document, instruction)])).logits[0, -1].double()
        return float(relevance_of(logits, encode))

    with torch.inference_mode():
        return Reference(
            *(
                np.array([[relevance(query, document, said) for document in documents] for query, documents in pairs()])
                for said in (None, INSTRUCTION)
            )
        )


def tokens(directory: Path, name: str, query: str, document: str) -> list[int]:
    """Return the tokens of the prompt for a pair, without an instruction."""
    ids_of, _ = _PUBLISHERS[name]
    return ids_of(_encoder(directory), query, document, None)


def _encoder(directory: Path) -> Encode:
    tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode


def _ids_of_qwen(encode: Encode, query: str, document: str, instruction: str | None) -> list[int]:
    told = _DEFAULT_OF_QWEN if instruction is None else instruction
    pair = f"<Instruct>: {told}\n<Query>: {query}\n<Document>: {document}"
    return [*encode(_SYSTEM_OF_QWEN), *encode(pair), *encode(f"{_ANSWER}<think>\n\n</think>\n\n")]


def _relevance_of_qwen(logits: torch.Tensor, encode: Encode) -> torch.Tensor:
    (yes,), (no,) = encode("yes"), encode("no")
    return torch.softmax(logits[[no, yes]], dim=0)[1]


def _ids_of_mxbai(encode: Encode, query: str, document: str, instruction: str | None) -> list[int]:
    asked = f"query: {query}" if instruction is None else f"instruction: {instruction}\nquery: {query}"
    line_feed = encode("\n")
    pair = [*encode(asked), *line_feed, *encode(f"document: {document}")]
    return [*encode(_SYSTEM_OF_MXBAI), *pair, *line_feed, *encode(_TASK_OF_MXBAI), *encode(_ANSWER)]


def _relevance_of_mxbai(logits: torch.Tensor, encode: Encode) -> torch.Tensor:
    return logits[encode("1")[0]] - logits[encode("0")[0]]


_PUBLISHERS = {
    "qwen3-reranker": (_ids_of_qwen, _relevance_of_qwen),
    "mxbai-rerank-v2": (_ids_of_mxbai, _relevance_of_mxbai),
}
