"""Report liveness and readiness separately, so that an outage of the database does not restart the process."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers.error_responses import documented
from api.answers.presentation import json_response
from api.answers.schemas.server import Health, Readiness
from api.callers.compatibility import RETRY_SECONDS
from api.probes import Probes
from api.server.refusals import stopping
from api.service import ProbesOf
from scoring.error_codes import ErrorCode, RequestError

router = APIRouter(tags=["health"])

NOT_TAKING = (ErrorCode.OVERLOADED, ErrorCode.SERVER_STOPPING, ErrorCode.SERVER_STARTING)

NOT_READY = documented(ErrorCode.STORAGE_UNAVAILABLE, ErrorCode.MODEL_UNAVAILABLE, *NOT_TAKING)


@router.get("/livez", response_model=Health, responses=documented(*NOT_TAKING))
async def livez(request: Request, probes: ProbesOf) -> Response:
    """Alive: requests are answered, whatever the database does. This is for load balancers.

    Of several processes, none says so while one hangs, because some connections would get no answer. A server that
    stops does not, even while it goes on taking requests.
    """
    _check_process(request, probes)
    return json_response({"status": "ok"})


@router.get("/readyz", response_model=Readiness, responses=NOT_READY)
async def readyz(request: Request, probes: ProbesOf) -> Response:
    """Ready: the database can be read and written, with a schema that will do, and the workers serve what this does.

    Also without workers: jobs are accepted, and wait. With workers of which none has this process's tokenizer,
    vocabulary, context and delimiter it is not ready, and the error's message says what differs. Whoever asks within a
    second of another gets the same answer.
    """
    _check_process(request, probes)
    return json_response(await probes.readiness.result())


@router.get("/health", response_model=Readiness, responses=NOT_READY)
async def health(request: Request, probes: ProbesOf) -> Response:
    """Answer as `/readyz` does, at the path that is usual with other servers."""
    return await readyz(request, probes)


def _check_process(request: Request, probes: Probes) -> None:
    if request.app.state.is_stopping:
        raise stopping()
    if probes.siblings is not None and (silent := probes.siblings.silent()):
        message = f"of the API's processes, these hang and are about to be replaced: {', '.join(map(str, silent))}"
        raise RequestError(ErrorCode.OVERLOADED, message, retry_after=RETRY_SECONDS)
