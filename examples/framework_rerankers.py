"""Rank documents in LangChain, LlamaIndex and Haystack, by the classes that these have for Cohere.

scoreline up                        # in another terminal; it serves the demonstration model
pip install cohere langchain-cohere llama-index-postprocessor-cohere-rerank cohere-haystack
python examples/framework_rerankers.py
"""

from __future__ import annotations

import os

import cohere
from haystack import Document as HaystackDocument
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from langchain_cohere import CohereRerank as LangChainRerank
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaIndexRerank

URL = os.environ.get("SCORELINE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("SCORELINE_API_KEY", "any")  # `scoreline up` needs none, and Cohere's client insists on one
MODEL = "default"  # the model that the service serves

QUESTION = "how do I care for indoor plants?"
TEXTS = [
    "The train to the coast leaves at nine.",
    "Water the fern once a week and keep it out of the sun.",
    "The soup was cold and the waiter forgot us.",
]

of_langchain = LangChainRerank(client=cohere.ClientV2(KEY, base_url=URL), model=MODEL, top_n=1)
(best,) = of_langchain.compress_documents([LangChainDocument(page_content=text) for text in TEXTS], QUESTION)
print(f"LangChain: {best.metadata['relevance_score']:.3f} {best.page_content}")

of_llama_index = LlamaIndexRerank(api_key=KEY, base_url=URL, model=MODEL, top_n=1)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
(first,) = of_llama_index.postprocess_nodes(nodes, query_str=QUESTION)
print(f"LlamaIndex: {first.score:.3f} {first.node.get_content()}")

of_haystack = CohereRanker(model=MODEL, api_key=Secret.from_token(KEY), api_base_url=URL, top_k=1)
(top,) = of_haystack.run(query=QUESTION, documents=[HaystackDocument(content=text) for text in TEXTS])["documents"]
print(f"Haystack: {top.score:.3f} {top.content}")
