"""Why Redis can't be used is one line: the setting, its value without the password, the reason, and what to do."""

from __future__ import annotations

import pytest

from bell.outages import explain_outage

PLAIN, TLS = "redis://:s3cret@host:6379/0", "rediss://:s3cret@host:6379/0"


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        (PLAIN, "Error 111 connecting to host:6379. Connection refused.", "start Redis there, or correct the host"),
        (PLAIN, "Error -2 connecting to host:6379. Name or service not known.", "correct the name of the host"),
        (PLAIN, "Timeout reading from socket", "check the network, and whether Redis listens there"),
        (TLS, "Timeout connecting to server", "for one that does not, which waits in silence, write redis://"),
        (TLS, "Error 1 connecting to host:6379. [SSL: WRONG_VERSION_NUMBER]", "write redis:// instead of rediss://"),
        (TLS, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "?ssl_ca_certs=FILE"),
        (PLAIN, "Connection closed by server.", "write rediss:// if it speaks TLS"),
        (PLAIN, "invalid username-password pair or user is disabled.", "correct the user and the password"),
        (PLAIN, "Authentication required.", "correct the user and the password"),
        (PLAIN, "DB index is out of range", "correct the number of the database"),
        (PLAIN, "You can't write against a read only replica.", "name the primary"),
        (PLAIN, "something\nnew", "something new; see what Redis logs"),
    ],
)
def test_an_outage_is_one_line_with_what_to_do(url: str, error: str, says: str) -> None:
    said = explain_outage(ConnectionError(error), url)
    scheme = url.partition(":")[0]
    assert said.startswith(f"SCORELINE_REDIS_URL is '{scheme}://:***@host:6379/0': ")
    assert says in said
    assert "\n" not in said
    assert "s3cret" not in said
