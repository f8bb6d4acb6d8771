"""The kinds of work that calls and jobs ask for: scores of labels, likelihoods of items, or answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from api.answers.decisions.schemas import DecisionJobBody, DecisionsBody, SystemOneBody
from api.answers.items.request_schemas import JobBody, LikelihoodBody, LikelihoodJobBody, ScoreBody
from api.reading import ReadingContext
from api.requests import refused_fields
from api.requests.artefacts import with_artefact, with_artefacts_of_questions
from api.requests.decisions import parse_decisions, parse_systemone
from api.requests.refused_fields import Refused
from public_api import paths
from scoring.error_codes import invalid
from scoring.request import ScoreRequest, parse_likelihood_request, parse_score_request


@dataclass(frozen=True, slots=True)
class Kind:
    """What a body of this kind may hold, and how it is read."""

    path: str  # of its calls
    call_fields: Collection[str]
    job_fields: Collection[str]
    refused: Mapping[str, Refused]  # the fields of other systems that neither may have
    parse: Callable[[ReadingContext, Mapping[str, object]], ScoreRequest]
    is_strict: bool = False  # whether unknown fields are refused, whatever the client wants
    # Adds to a request what is to be made of its scores, by the calibrations and thresholds that it names.
    judged: Callable[[ReadingContext, Mapping[str, object], ScoreRequest], ScoreRequest] | None = None


SCORE = Kind(
    paths.SCORE,
    ScoreBody.model_fields,
    JobBody.model_fields,
    refused_fields.SCORE,
    lambda reading, body: parse_score_request(body, reading.templates.by_name, reading.card.classes),
    judged=with_artefact,
)
LIKELIHOOD = Kind(
    paths.LIKELIHOOD,
    LikelihoodBody.model_fields,
    LikelihoodJobBody.model_fields,
    refused_fields.LIKELIHOOD,
    lambda _, body: parse_likelihood_request(body),
)
SYSTEMONE = Kind(
    paths.SYSTEMONE,
    SystemOneBody.model_fields,
    DecisionJobBody.model_fields,
    {},
    parse_systemone,
    is_strict=True,
    judged=with_artefacts_of_questions,
)
DECISIONS = Kind(
    paths.DECISIONS,
    DecisionsBody.model_fields,
    (),
    {},
    parse_decisions,
    is_strict=True,
    judged=with_artefacts_of_questions,
)

KINDS = {"score": SCORE, "likelihood": LIKELIHOOD, "decision": SYSTEMONE}
"""By the name in the body of a job, of which the first is the default."""


def kind_of(body: Mapping[str, object]) -> Kind:
    """Return the kind of the job in a body. Raises RequestError."""
    name = body.get("kind")
    if name is None:
        return SCORE
    if not isinstance(name, str) or name not in KINDS:
        raise invalid(f"kind must be one of {', '.join(KINDS)}", "kind")
    return KINDS[name]
