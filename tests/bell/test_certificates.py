"""A worker's Celery gives Redis's password to nobody who can't show that he is Redis."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_server

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from bell.redis_celery import create_celery


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[int]:
    """The port of a server whose certificate nobody has signed but itself."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "both.pem").write_bytes(secret + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with create_server(("127.0.0.1", 0)) as listening:

        def shake_hands() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the test has ended
                    return
                with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as spoken:
                    while spoken.recv(1 << 16):
                        spoken.sendall(b"+OK\r\n")

        threading.Thread(target=shake_hands, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_certificate_that_nobody_has_signed_is_refused(impostor: int) -> None:
    celery = create_celery(f"rediss://:password@localhost:{impostor}/0", "test")
    with pytest.raises((OperationalError, RedisError), match="CERTIFICATE_VERIFY_FAILED"):
        celery.connection_for_read().connect()


def test_it_is_accepted_where_the_url_says_so(impostor: int) -> None:
    celery = create_celery(f"rediss://:password@localhost:{impostor}/0?ssl_cert_reqs=none", "test")
    with celery.connection_for_read() as connection:
        connection.connect()
        assert connection.connected
