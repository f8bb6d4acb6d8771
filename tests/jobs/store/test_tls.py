"""TLS to PostgreSQL, as docs/deployment.md has it: a server is known by its certificate, or not used."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus

import pytest
import trustme
from sqlalchemy import text

from jobs.store.database import Database
from operations.command import run_on_store
from settings.errors.endings import Ending
from settings.store import StoreSettings
from tests.services import FOR_TESTS, LOOPBACK, PostgresServer

IN_USE = text("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's user may read, which pytest's folders are not."""
    with tempfile.TemporaryDirectory(prefix="scoreline-certificates-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def authority(folder: Path) -> Path:
    """The file of the authority that has signed the certificate of the server."""
    return written(trustme.CA(), folder / "authority.pem")


@pytest.fixture(scope="module")
def url(folder: Path, authority: Path) -> Iterator[str]:
    """The URL of a server that offers TLS."""
    signer = trustme.CA.from_pem(authority.read_bytes(), authority.with_suffix(".key").read_bytes())
    signed = signer.issue_cert(LOOPBACK)
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in signed.cert_chain_pems))
    signed.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    if os.geteuid() == 0:
        shutil.chown(key, "postgres")
    options = {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
    server = PostgresServer(options={**FOR_TESTS, **options})
    try:
        yield server.url(server.create_database())
    finally:
        server.close()


def written(authority: trustme.CA, path: Path) -> Path:
    """Write an authority to a file, and its key beside it."""
    authority.cert_pem.write_to_path(path)
    authority.private_key_pem.write_to_path(path.with_suffix(".key"))
    return path


def verifying(url: str, authority: Path) -> str:
    """Return the URL with what the documentation adds to it."""
    return f"{url}?sslmode=verify-full&sslrootcert={quote_plus(str(authority))}"


@pytest.mark.parametrize("verifies", [False, True])
def test_the_connection_is_encrypted_also_where_nothing_asks_for_it(url: str, authority: Path, verifies: bool) -> None:
    database = Database.open(StoreSettings(database_url=verifying(url, authority) if verifies else url))
    with database.read() as tx:
        row = tx.execute(IN_USE).one()
    assert row.ssl is True
    assert row.version in ("TLSv1.2", "TLSv1.3")
    database.engine.dispose()


def test_a_server_whose_certificate_another_authority_has_signed_is_refused(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = verifying(url, written(trustme.CA(), folder / "another.pem"))
    line = told_by_a_command(wrong, monkeypatch, capsys)
    assert "certificate verify failed" in line
    assert line.endswith("correct sslmode and the certificates that it needs")


def test_a_server_with_the_certificate_of_another_host_is_refused(
    url: str, authority: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told_by_a_command(verifying(url.replace(LOOPBACK, "localhost"), authority), monkeypatch, capsys)
    assert 'does not match host name "localhost"' in line
    assert line.endswith("correct sslmode and the certificates that it needs")


def told_by_a_command(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line that a command on the database of this URL prints."""
    monkeypatch.setenv("SCORELINE_DATABASE_URL", url)
    assert run_on_store(lambda _: Ending.DONE) == Ending.UNAVAILABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    return line
