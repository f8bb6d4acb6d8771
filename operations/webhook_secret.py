"""A tenant's webhook secrets at the terminal: ``python -m operations.webhook_secret show|rotate TENANT``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from jobs.store.database import Database, StorageUnavailable
from jobs.tenancy.tenants import find_tenant
from jobs.webhooks.secrets import live_secrets, rotate_secret
from settings.delivery import DeliverySettings
from settings.jobs import StoreSettings
from webhooks.signing import new_secret


def main(arguments: list[str]) -> int:
    """Print the live secrets, one a line, the current one first. Returns the exit status."""
    action, tenant = arguments
    try:
        database = Database.open(StoreSettings())
        database.check()
        if find_tenant(database, tenant) is None:
            raise ValueError(f"there is no tenant {tenant!r}; `scoreline tenants list` shows their names")
        if action == "rotate":
            overlap = DeliverySettings().webhook_secret_overlap_seconds
            secrets = rotate_secret(database, tenant, new_secret, overlap)
        else:
            secrets = live_secrets(database, tenant, new_secret)
    except (ValueError, StorageUnavailable) as error:
        print(f"can't look: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return 1
    database.close()
    for one in secrets:
        print(one.secret if one.expires_at is None else f"{one.secret}  until {_moment(one.expires_at)}")
    return 0


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
