"""The kinds of work that calls and jobs ask for: scores of labels, or likelihoods of items."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from api.answers.items.request_schemas import JobBody, LikelihoodBody, LikelihoodJobBody, ScoreBody
from api.requests import refused_fields
from api.requests.refused_fields import Refused
from public_api import paths
from scoring.error_codes import invalid
from scoring.request import ScoreRequest, parse_likelihood_request, parse_score_request
from scoring.templates.template import Template


@dataclass(frozen=True, slots=True)
class Kind:
    """What a body of this kind may hold, and how it is read."""

    path: str  # of its calls
    call_fields: Collection[str]
    job_fields: Collection[str]
    refused: Mapping[str, Refused]  # the fields of other systems that neither may have
    parse: Callable[[Mapping[str, object], Mapping[str, Template]], ScoreRequest]


SCORE = Kind(paths.SCORE, ScoreBody.model_fields, JobBody.model_fields, refused_fields.SCORE, parse_score_request)
LIKELIHOOD = Kind(
    paths.LIKELIHOOD,
    LikelihoodBody.model_fields,
    LikelihoodJobBody.model_fields,
    refused_fields.LIKELIHOOD,
    lambda body, _: parse_likelihood_request(body),
)

KINDS = {"score": SCORE, "likelihood": LIKELIHOOD}
"""By the name in the body of a job, of which the first is the default."""


def kind_of(body: Mapping[str, object]) -> Kind:
    """Return the kind of the job in a body. Raises RequestError."""
    name = body.get("kind")
    if name is None:
        return SCORE
    if not isinstance(name, str) or name not in KINDS:
        raise invalid(f"kind must be one of {', '.join(KINDS)}", "kind")
    return KINDS[name]
