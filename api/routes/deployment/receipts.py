"""Publish the keys by which receipts are verified."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.answers.error_responses import documented
from api.answers.presentation import json_response
from api.answers.schemas.server import PublishedKeys
from api.service import ServiceOf
from public_api import paths
from scoring.error_codes import ErrorCode

router = APIRouter(tags=["receipts"])

NOT_TAKING = documented(ErrorCode.OVERLOADED, ErrorCode.SERVER_STOPPING, ErrorCode.SERVER_STARTING)


@router.get(paths.RECEIPT_KEYS, response_model=PublishedKeys, responses=NOT_TAKING)
async def receipt_keys(service: ServiceOf) -> Response:
    """The public keys of receipts, as a JSON Web Key Set (RFC 7517). Nobody needs a key of the API to read them."""
    keys = service.receipt_keys
    return json_response({"keys": []} if keys is None else keys.published())
