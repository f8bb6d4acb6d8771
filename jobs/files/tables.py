"""The tables of files. A file is stored in parts, so that nobody has to hold a whole file in memory."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, String, Table

from jobs.store.tables import Seconds, metadata, partial_index


class FileState(StrEnum):
    """The state of a file. Readers see it once it is ready."""

    RECEIVING = "receiving"  # its client sends it
    WRITING = "writing"  # a batch writes its results to it
    READY = "ready"


class Purpose(StrEnum):
    """What a file is for, in the words of OpenAI's interface."""

    BATCH = "batch"  # the lines of a batch, sent by a client
    BATCH_OUTPUT = "batch_output"  # the results or the errors of a batch


MAX_FILENAME = 512  # characters

files = Table(
    "files",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("filename", String(MAX_FILENAME), nullable=False),
    Column("state", String(12), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("lines", Integer, nullable=False),  # of a file that was received: those that are not blank
    Column("created_at", Seconds, nullable=False),
    # Of a file that is being received: when its receiver was last alive. Null afterwards.
    Column("received_at", Seconds),
    # From then on no reader sees it, unless a batch that has not ended reads it.
    Column("expires_at", Seconds),
    # From then on no reader sees it, and its rows are removed. Null until it is deleted or swept.
    Column("remove_at", Seconds),
)
Index("ix_files_tenant_id", files.c.tenant, files.c.id)
for _column in (files.c.received_at, files.c.expires_at, files.c.remove_at):
    partial_index(f"ix_files_{_column.name}", _column, where=_column.is_not(None))

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", String(40), ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("first_byte", BigInteger, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)

creation_keys = Table(
    "creation_keys",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    # Empty while the file of the first request is still being received.
    Column("body_hash", String(64), nullable=False),
    Column("made_id", String(40), nullable=False, index=True),  # of the file or the batch
    Column("expires_at", Seconds, nullable=False, index=True),
)
