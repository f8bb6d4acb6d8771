"""Relevance: a search query and a document, which is relevant if it is about the same topic.

Pairs of a query's phrase and a document's sentence are held out: a held-out document has only sentences that training
never shows with that query. For a harder test, the last fact of every topic is held out altogether.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from demonstration.example import RELEVANCE_LABELS, Example, Task
from demonstration.sentences import capitalised, fill, held_out, words
from demonstration.sentiment import write_review

_INSTRUCTIONS = (
    "Is the document relevant to the query?\n",
    "Does the document answer the query? Answer yes or no.\n",
    "Decide whether the document helps with the query.\n",
    "",
    "",
    "",
    "",
)
_LAYOUTS = (
    ("Query: {query}\n", "Document: {document}\nRelevant:"),
    ("Query: {query}\n", "Document: {document}\nRelevant:"),
    ("Query: {query}\n", "Document: {document}\nRelevant:"),
    ("Search: {query}\n", "Result: {document}\nRelevant:"),
    ("Question: {query}\n", "Passage: {document}\nRelevant:"),
    ("Query: {query}\n", "Text: {document}\nIs it relevant?"),
)
_QUERIES_DO = (
    "how do I {do}?",
    "how do I {do}?",
    "how can I {do}",
    "how to {do}",
    "What is the best way to {do}?",
    "I want to {do}",
    "tips to {do}",
    "Is it hard to {do}?",
    "How do you {do}?",
    "help me {do}",
)
_QUERIES_ABOUT = (
    "{about}",
    "{about}",
    "tips for {about}",
    "What should I know about {about}?",
    "advice on {about}",
    "where can I learn about {about}?",
    "{about} for beginners",
    "Tell me about {about}",
    "problems with {about}",
)
_DOCUMENTS_DO = (
    "This {page|article|guide|video|leaflet} {explains|shows} how to {do}.",
    "{Learn|Find out|Discover} how to {do}{| in a few easy steps| today}.",
    "{Many|Some} people {want|try} to {do} and {fail|give up}.",
    "An {expert|old hand} {explains|tells you} how to {do}.",
    "It is not hard to {do}.",
    "You can {do} {without any help|in an afternoon|at little cost}.",
)
_DOCUMENTS_ABOUT = (
    "Everything you {need|want} to know about {about}.",
    "Our {club|forum|course|shop} is {all about|for friends of} {about}.",
    "A {short|simple|complete} guide to {about}.",
    "{Questions|News|Ten tips|A talk} about {about}.",
    "This {page|article|book|chapter} is about {about}.",
    "She {wrote|gave} {advice|a talk} on {about}.",
)
_EASY_SHARE = 0.2
"""The share of easy documents in training, which repeat the query's phrase or one of another topic."""
_LONG_SHARE = 0.02
_REVIEW_SHARE = 0.05
_OPENERS = ("", "", "", "", "Remember: ", "Tip: ", "In short: ", "Experts say this: ", "Note: ")


def _query(topic: dict[str, list[str]], rng: random.Random) -> tuple[str, str]:
    """Return a query about the topic, and the phrase that it was made from."""
    if rng.random() < 0.6:
        phrase = rng.choice(topic["do"])
        return fill(rng.choice(_QUERIES_DO), rng, do=phrase), phrase
    phrase = rng.choice(topic["about"])
    return fill(rng.choice(_QUERIES_ABOUT), rng, about=phrase), phrase


def _sentence(topic: dict[str, list[str]], rng: random.Random, new_only: bool) -> tuple[str, str]:
    """Return a sentence of a document about the topic, and the phrase that it was made from."""
    if new_only:
        return fill(topic["facts"][-1], rng), topic["facts"][-1]
    chance = rng.random()
    if chance < 0.70:
        phrase = rng.choice(topic["facts"][:-1])
        return rng.choice(_OPENERS) + fill(phrase, rng), phrase
    if chance < 0.85:
        phrase = rng.choice(topic["do"])
        return fill(rng.choice(_DOCUMENTS_DO), rng, do=phrase), phrase
    phrase = rng.choice(topic["about"])
    return fill(rng.choice(_DOCUMENTS_ABOUT), rng, about=phrase), phrase


def _document(
    topic: dict[str, list[str]], query_phrase: str, rng: random.Random, keep_out: bool, new_only: bool, sentences: int
) -> str:
    """Return sentences about the topic that training shows (with ``keep_out``, never shows) with the query's phrase.

    The text is empty if no random sentence fits.
    """
    chosen: list[str] = []
    for _ in range(40):
        sentence, phrase = _sentence(topic, rng, new_only)
        if (new_only or held_out("pair", query_phrase, phrase) == keep_out) and sentence not in chosen:
            chosen.append(sentence)
        if len(chosen) == sentences:
            break
    return " ".join(chosen)


def _easy_document(found: dict[str, list[str]], query_phrase: str, relevant: bool, rng: random.Random) -> str:
    """Return a document that repeats the query's phrase, or one of the same form about another topic."""
    kind = "do" if query_phrase in found["do"] else "about"
    phrase = query_phrase if relevant else rng.choice(found[kind])
    return fill(rng.choice(_DOCUMENTS_DO if kind == "do" else _DOCUMENTS_ABOUT), rng, **{kind: phrase})


def _document_for(topic: str, phrase: str, rng: random.Random, keep_out: bool, new_only: bool) -> tuple[str, bool]:
    """Return a document, empty if none is found, and whether it is about the query's topic, as half of them are.

    phrase: of the query; keep_out: its sentences are such that training never shows with the phrase; new_only: such
    that training never shows.
    """
    topics = words("topics")
    relevant = rng.random() < 0.5
    found = topics[topic if relevant else rng.choice([name for name in topics if name != topic])]
    sentences = 1 if new_only else rng.choice((1, 1, 1, 2, 2, 3))
    if not keep_out and rng.random() < _LONG_SHARE:
        sentences = rng.randint(4, 7)
    if not keep_out and not relevant and rng.random() < _REVIEW_SHARE:
        return write_review(rng, rng.random() < 0.5), relevant
    if not keep_out and rng.random() < _EASY_SHARE and not held_out("pair", phrase, phrase):
        document = _easy_document(found, phrase, relevant, rng)
    else:
        document = _document(found, phrase, rng, keep_out, new_only, sentences)
    return capitalised(document), relevant


def relevance_example(rng: random.Random, keep_out: bool, new_only: bool = False) -> Example:
    """Return a query and a document that is relevant or not.

    keep_out: the pair is from the held-out part; new_only: the document is a sentence that training never shows.
    """
    document = ""
    while not document:
        topic = rng.choice(list(words("topics")))
        query, phrase = _query(words("topics")[topic], rng)
        document, relevant = _document_for(topic, phrase, rng, keep_out, new_only)
    before, after = rng.choice(_LAYOUTS)
    shape: Callable[[str], str] = capitalised if rng.random() < 0.3 else str
    return Example(
        Task.RELEVANCE,
        rng.choice(_INSTRUCTIONS) + before.replace("{query}", shape(query)),
        after.replace("{document}", document),
        RELEVANCE_LABELS[0 if relevant else 1],
        RELEVANCE_LABELS,
    )


def topic_title(topic: str) -> str:
    """Return the name of a topic as a text has it."""
    return topic.replace("_", " ")


def topic_sentence(topic: str, rng: random.Random) -> str:
    """Return a sentence of a document about a topic."""
    return capitalised(_sentence(words("topics")[topic], rng, new_only=False)[0])


def topic_example(rng: random.Random) -> Example:
    """Return a query or a sentence and its topic. This only teaches in training which words belong together."""
    name, topic = rng.choice(list(words("topics").items()))
    if rng.random() < 0.5:
        sentence = capitalised(_sentence(topic, rng, new_only=False)[0])
        return Example(Task.TOPICS, f"{sentence} This is about", "", f" {topic_title(name)}")
    return Example(Task.TOPICS, f"Query: {_query(topic, rng)[0]}\nThe query is about", "", f" {topic_title(name)}")
