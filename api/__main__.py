"""Run the API: ``python -m api``. It is one process, or a parent with as many children as the settings say."""

from __future__ import annotations

import os
import signal
import sys

import structlog

from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.errors.endings import Ending
from settings.errors.mistakes import SettingError
from settings.logs import configure_logs
from settings.unknown import warn_of_unknown_variables

log = structlog.stdlib.get_logger("api")


def main() -> int:
    """Serve until stopped, and return the exit code. If the API can't start, one line in the log says why."""
    configure_logs()
    warn_of_unknown_variables(os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    try:
        settings = ApiSettings()
        bell = BellSettings()
    except SettingError as error:
        log.error("can't start", reason=str(error))
        return Ending.MISCONFIGURED
    # A parent does not import what its children need, and a single process needs nothing of a parent.
    if settings.process_count > 1:
        from api.processes.parent import Parent

        return Parent(settings, bell).run()
    starting = None
    if bell.bell_socket is not None:
        # All of the service is on this machine. Elsewhere, a load balancer goes on to another API if one is silent.
        from api.processes.listening import PortError, reserve
        from api.server.starting import Starting

        try:
            addresses = reserve(settings.host, settings.port)
        except PortError as error:
            log.error("can't start", reason=str(error))
            return Ending.FAILED
        starting = Starting(addresses.sockets())
        addresses.close()
    from api.processes.serving import serve

    return serve(() if starting is None else starting.sockets, starting=starting)


if __name__ == "__main__":
    sys.exit(main())
