"""Read and check the ``webhook`` in the body of a job or of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jobs.store.database import Database
from jobs.store.records import Submission
from jobs.store.webhook_events import BatchEvent, Event, Webhook
from jobs.webhooks.endpoints import find_endpoint
from scoring.error_codes import ErrorCode, RequestError, invalid
from scoring.quoting import quote_name
from webhooks.addresses import AddressRules, ForbiddenUrl, check_url

FIELDS = ("url", "events")


def read_webhook(
    body: Mapping[str, object], rules: AddressRules, known: type[Event] | type[BatchEvent] = Event
) -> Webhook | None:
    """Return a body's webhook, if it has one. known: the events that it may ask for.

    Raises RequestError INVALID_REQUEST, WEBHOOK_URL_FORBIDDEN.
    """
    value = body.get("webhook")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("webhook must be an object with a url", "webhook")
    url = value.get("url")
    if not isinstance(url, str):
        raise invalid("webhook.url must be a string", "webhook.url")
    try:
        target = check_url(url, rules)
    except ForbiddenUrl as forbidden:
        raise RequestError(
            ErrorCode.WEBHOOK_URL_FORBIDDEN, f"webhook.url is refused: {forbidden}", param="webhook.url"
        ) from forbidden
    return Webhook(url, target.host, _events(value.get("events"), known))


def _events(value: object, known: type[Event] | type[BatchEvent]) -> tuple[Event | BatchEvent, ...]:
    """Return the named events, each once, in the order of the known ones; without a value, all of them."""
    if value is None:
        return tuple(known)
    names = ", ".join(known)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise invalid(f"webhook.events must be a list of at least one of {names}", "webhook.events")
    for place, name in enumerate(value):
        if name not in set(known):
            raise invalid(f"there is no event {quote_name(name)}; there are {names}", f"webhook.events[{place}]")
    return tuple(event for event in known if event in value)


def unknown_webhook_fields(body: Mapping[str, object]) -> list[str]:
    """Return the paths of unknown fields in ``webhook``."""
    value = body.get("webhook")
    return [f"webhook.{name}" for name in value if name not in FIELDS] if isinstance(value, dict) else []


def with_warning_of_disabled_endpoint(database: Database, submission: Submission) -> Submission:
    """Return the job, with a warning if the endpoint of its webhook is disabled."""
    if submission.webhook is None:
        return submission
    endpoint = find_endpoint(database, submission.tenant, submission.webhook.url)
    if endpoint is None or endpoint.disabled_at is None:
        return submission
    warning = "nothing is sent to webhook.url: it failed for too long, or said that it is gone; see /docs on redelivery"
    return replace(submission, warnings=(*submission.warnings, warning))
