"""Show or rotate the webhook secrets of a tenant: ``python -m operations.webhook_secret show|rotate TENANT``."""

from __future__ import annotations

import sys
from dataclasses import asdict

from jobs.store.database import Database
from jobs.tenancy.tenants import find_tenant, no_such_tenant
from jobs.webhooks.secrets import live_secrets, rotate_secret
from operations.command import Arguments, run_on_store
from operations.table import format_time, print_json
from settings.errors.endings import Ending
from settings.webhooks import WebhookSettings
from webhooks.signing import new_secret


def _show(database: Database, tenant: str, *, rotate: bool, as_json: bool) -> int:
    """Print the live secrets, one per line, the current one first."""
    if find_tenant(database, tenant) is None:
        raise no_such_tenant(tenant)
    if rotate:
        secrets = rotate_secret(database, tenant, new_secret, WebhookSettings().webhook_secret_overlap_seconds)
    else:
        secrets = live_secrets(database, tenant, new_secret)
    if as_json:
        print_json([asdict(one) for one in secrets])
        return Ending.DONE
    for one in secrets:
        print(one.secret if one.expires_at is None else f"{one.secret}  until {format_time(one.expires_at)}")
    return Ending.DONE


if __name__ == "__main__":
    parser = Arguments(prog="scoreline webhooks secret")
    parser.add_argument("action", choices=["show", "rotate"])
    parser.add_argument("tenant")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rotates: bool = given.action == "rotate"
    sys.exit(run_on_store(lambda database: _show(database, given.tenant, rotate=rotates, as_json=given.json)))
