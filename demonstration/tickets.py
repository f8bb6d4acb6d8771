"""Tickets: what customers write to a company, and questions about it.

Pairs of a ticket's sentence and the wording of a question are held out: training shows both, but never together. For a
harder test, the last sentence of every department is held out altogether.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from demonstration.decisions import prompt
from demonstration.example import LEVEL_LABELS, OPTION_LABELS, RELEVANCE_LABELS, Example, Task
from demonstration.relevance import topic_sentence, topic_title
from demonstration.sentences import fill, held_out, words

_WHICH_DEPARTMENT = (
    "Which department should answer?",
    "Which team should answer?",
    "Which department is it?",
    "Who should answer this ticket?",
    "Where does this ticket belong?",
    "What is it about?",
    "What is the ticket about?",
    "Which team handles this?",
    "Route this ticket.",
    "Choose a department.",
)
_REFUND = (
    "Is a refund requested?",
    "Does the customer want a refund?",
    "Does the customer want money back?",
    "Is it a request for a refund?",
    "Refund?",
)
_URGENT = ("Is it urgent?", "Must it be answered today?", "Does the customer need help right now?", "Is this urgent?")
_ANGRY = ("Is the customer angry?", "Is the customer unhappy?", "Is it an angry message?", "Is the writer angry?")
_ABOUT = ("Is it about {name}?", "Is this a ticket about {name}?", "Does it belong to {name}?", "Should {name} answer?")
_HOW_URGENT = (
    "How urgent is it?",
    "How urgent is this ticket?",
    "When must it be answered?",
    "How soon is an answer needed?",
)
_SCALES = (
    ("can wait", "this week", "today"),
    ("can wait", "this week", "today"),
    ("low", "medium", "high"),
    ("not urgent", "soon", "urgent"),
    ("no hurry", "soon", "now"),
)
_SUBJECTS = ("Question", "Help", "My order", "Request", "Hello")


class _Ticket:
    """A ticket that is made up. What is not said of it is left to chance."""

    def __init__(
        self,
        rng: random.Random,
        department: str | None = None,
        *,
        refund: bool | None = None,
        urgency: int | None = None,
        is_urgent: bool | None = None,
        angry: bool | None = None,
        new_only: bool = False,
    ) -> None:
        table = words("tickets")
        self.department = department or rng.choice(list(table["departments"]))
        sentences = table["departments"][self.department]["sentences"]
        self.main = sentences[-1] if new_only else rng.choice(sentences[:-1])
        more = []
        if rng.random() < 0.3 if refund is None else refund:
            more.append(rng.choice(table["refund"]["yes"]))
        feeling = rng.choice((None, None, "angry", "happy") if angry is None else (None, "happy"))
        if angry or feeling:
            more.append(fill(rng.choice(table["feeling"]["angry" if angry else feeling]), rng))
        if is_urgent is not None:
            urgency = 2 if is_urgent else rng.choice((None, 0, 1))
        elif urgency is None:
            urgency = rng.choice((None, None, 0, 1, 2))
        if urgency is not None:
            more.append(rng.choice(table["urgency"][str(urgency)]))
        rng.shuffle(more)
        parts = [fill(self.main, rng), *more]
        if rng.random() < 0.15:
            parts.insert(1, fill(rng.choice(sentences[:-1]), rng))
        if rng.random() < 0.15:
            rng.shuffle(parts)
        if rng.random() < 0.2:
            parts.insert(0, rng.choice(table["greeting"]["any"]))
        self.text = " ".join(dict.fromkeys(parts))

    def state(self, rng: random.Random) -> str:
        """Return the ticket as a state: its text, and sometimes an object with a subject, as JSON."""
        if rng.random() < 0.88:
            return self.text
        return json.dumps({"subject": rng.choice(_SUBJECTS), "text": self.text})


def _question(
    task: Task, state: str, question: str, labels: tuple[str, ...], best: int, options: Sequence[str] = ()
) -> Example:
    return Example(
        task, *prompt(state, question, options, labels), labels[best], labels[: len(options)] if options else labels
    )


def _name(department: str, rng: random.Random) -> str:
    name: str = rng.choice(words("tickets")["departments"][department]["names"])
    return name


def _options(rng: random.Random, count: int, of_topics: bool) -> tuple[list[str], list[str]]:
    """Return different departments or topics, and their names."""
    if of_topics:
        found = rng.sample(list(words("topics")), count)
        return found, [topic_title(topic) for topic in found]
    found = rng.sample(list(words("tickets")["departments"]), count)
    return found, [_name(department, rng) for department in found]


def look_up_example(rng: random.Random) -> Example:
    """Return an example whose state names one of the options. In training, it teaches to find the option's number."""
    is_bare, of_topics = rng.random() < 0.5, rng.random() < 0.3
    found, names = _options(rng, 2 if is_bare else rng.choice((2, 3)), of_topics)
    best = rng.randrange(len(found))
    state = names[best] if is_bare else f"This is about {names[best]}."
    if not is_bare and not of_topics and rng.random() < 0.4:
        state += f" {_Ticket(rng, found[best]).text}"
    return _question(Task.LOOK_UP, state, rng.choice(_WHICH_DEPARTMENT), OPTION_LABELS, best, names)


def department_example(rng: random.Random) -> Example:
    """Return a ticket and its department. In training, it teaches which words belong together."""
    ticket = _Ticket(rng)
    return Example(Task.DEPARTMENT, f"{ticket.text} This is about", "", f" {_name(ticket.department, rng)}")


def option_example(rng: random.Random, keep_out: bool, new_only: bool = False, many: bool = False) -> Example:
    """Return a question for a ticket's department, or in training sometimes for the topic of a sentence.

    keep_out: the pair is from the held-out part; new_only: the ticket has a sentence that training never shows; many:
    there are four to six options, and not two to four.
    """
    of_topics = not keep_out and rng.random() < 0.15
    while True:
        question = rng.choice(_WHICH_DEPARTMENT)
        found, names = _options(rng, rng.choice((4, 5, 5, 6, 6) if many else (2, 3, 3, 4)), of_topics)
        best = rng.randrange(len(found))
        if of_topics:
            state = topic_sentence(found[best], rng)
            break
        ticket = _Ticket(rng, found[best], new_only=new_only)
        state = ticket.state(rng)
        if new_only or held_out("ticket", ticket.main, question) == keep_out:
            break
    return _question(Task.MANY_OPTIONS if many else Task.OPTION, state, question, OPTION_LABELS, best, names)


def level_example(rng: random.Random, keep_out: bool) -> Example:
    """Return a question for how urgent a ticket is, held out of training if ``keep_out``."""
    while True:
        question, level = rng.choice(_HOW_URGENT), rng.randrange(3)
        ticket = _Ticket(rng, urgency=level)
        if held_out("ticket", ticket.main, question) == keep_out:
            break
    return _question(Task.LEVEL, ticket.state(rng), question, LEVEL_LABELS, level, rng.choice(_SCALES))


def yes_or_no_example(rng: random.Random, keep_out: bool) -> Example:
    """Return a question about a ticket that is answered by yes or no, held out of training if ``keep_out``."""
    while True:
        yes = rng.random() < 0.5
        match rng.randrange(4):
            case 0:
                question, ticket = rng.choice(_REFUND), _Ticket(rng, refund=yes)
            case 1:
                question, ticket = rng.choice(_URGENT), _Ticket(rng, is_urgent=yes)
            case 2:
                question, ticket = rng.choice(_ANGRY), _Ticket(rng, angry=yes)
            case _:
                (true, other), names = _options(rng, 2, of_topics=False)
                ticket = _Ticket(rng, true if yes else other)
                question = rng.choice(_ABOUT).format(name=names[0])
        if held_out("ticket", ticket.main, question) == keep_out:
            break
    return _question(Task.YES_OR_NO, ticket.state(rng), question, RELEVANCE_LABELS, 0 if yes else 1)
