"""What a client, a tenant and all clients together may use of an API process. docs/limits.md explains each limit."""

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt

from settings.errors.mistakes import setting_error, variable_of
from settings.slice import SettingsSlice

MEBIBYTE = 2**20

HELD_BYTES = ("max_buffered_body_bytes", "max_buffered_body_bytes_per_tenant")
AT_THE_SAME_TIME = (
    "max_connections",
    "max_waiting_key_lookups",
    "max_open_requests",
    "max_open_requests_per_tenant",
    "max_open_streams",
    "max_open_streams_per_tenant",
    "max_open_uploads",
    "max_open_uploads_per_tenant",
    *HELD_BYTES,
)
"""The limits of what a process holds at the same time. Several processes that serve a port together divide them."""


class LimitSettings(SettingsSlice):
    """The size, the number and the time of everything that clients send. The defaults suit a machine of 4 GB."""

    # Connections and headers, which cost something before anybody knows who is asking.
    max_connections: PositiveInt = Field(
        8_192, description="open connections of one API process; more are closed at once"
    )
    max_header_bytes: PositiveInt = Field(32_768, description="bytes of a request's first line and headers together")
    max_headers: PositiveInt = Field(100, description="headers of a request")
    header_seconds: PositiveFloat = Field(10.0, description="time in which the headers of a request must have arrived")
    max_pipelined_requests: PositiveInt = Field(
        16, description="requests of one connection that wait for their answers; clients rarely send any ahead"
    )
    send_seconds: PositiveFloat = Field(
        30.0, description="how long a client may leave a response unread before its connection is closed"
    )

    # Bodies.
    max_body_bytes: PositiveInt = Field(32 * MEBIBYTE, description="largest request body, JSON lines excepted")
    body_silence_seconds: PositiveFloat = Field(
        20.0, description="how long a client may send nothing in the middle of a body, JSON lines excepted"
    )
    body_seconds: PositiveFloat = Field(
        300.0, description="time in which a body must have arrived as a whole, JSON lines excepted"
    )
    max_buffered_body_bytes: PositiveInt = Field(
        192 * MEBIBYTE,
        description="bytes of all unfinished bodies and unread answers together; processes that serve a port together "
        "divide what may be held at the same time (docs/limits.md)",
    )
    max_buffered_body_bytes_per_tenant: PositiveInt = Field(64 * MEBIBYTE, description="the same, of one tenant")
    max_upload_bytes: PositiveInt = Field(16 * 2**30, description="largest job sent as JSON lines, unpacked")
    max_line_bytes: PositiveInt = Field(MEBIBYTE, description="longest line of a job sent as JSON lines")
    upload_seconds: PositiveFloat = Field(
        3_600.0, description="how long the server waits for the bytes of a job sent as JSON lines, all pauses together"
    )
    upload_bytes_per_second: PositiveInt = Field(
        65_536, description="the server waits one more second each time this many bytes of the job have come"
    )
    max_gzip_members: PositiveInt = Field(
        262_144, description="members of a compressed body (frames, if it is zstd), at most"
    )
    max_gzip_ratio: PositiveInt = Field(
        200, description="unpacked bytes for each byte of a compressed body, at most; the first 16 MiB are not checked"
    )

    # Files and batches.
    max_file_bytes: PositiveInt = Field(2 * 2**30, description="largest file sent to `/v1/files`")
    max_lines_per_file: PositiveInt = Field(
        1_000_000, description="lines of such a file; each is a request of a batch, and blank lines do not count"
    )
    max_files_per_tenant: PositiveInt = Field(1_000, description="files that one tenant may have")
    max_stored_bytes_per_tenant: PositiveInt = Field(
        64 * 2**30,
        description="bytes that one tenant may store: its files, its jobs with their scores, and what batches write; "
        "not exact, since API processes let work in by sums that are seconds old",
    )
    max_open_batches_per_tenant: PositiveInt = Field(
        100, description="batches that one tenant may have at the same time; those that have ended do not count"
    )
    max_completion_window_seconds: PositiveInt = Field(7 * 86_400, description="longest `completion_window` of a batch")

    # Requests at the same time.
    max_open_requests: PositiveInt = Field(2_048, description="requests that a process answers at the same time")
    max_open_requests_per_tenant: PositiveInt = Field(512, description="the same, of one tenant")
    max_waiting_key_lookups: PositiveInt = Field(
        512, description="API keys that wait to be looked up because the process has not seen them lately"
    )
    max_open_streams: PositiveInt = Field(
        4_096,
        description="requests that wait for a job's end, receive scores as JSON lines or the content of a file, or "
        "follow events, at the same time",
    )
    max_open_streams_per_tenant: PositiveInt = Field(1_024, description="the same, of one tenant")
    max_open_uploads: PositiveInt = Field(
        64, description="jobs sent as JSON lines, and files, that arrive at the same time"
    )
    max_open_uploads_per_tenant: PositiveInt = Field(16, description="the same, of one tenant")

    # Texts and tokens.
    max_query_characters: PositiveInt = Field(1_000_000, description="characters of a query")
    max_item_characters: PositiveInt = Field(1_000_000, description="characters of an item")
    max_label_characters: PositiveInt = Field(1_000, description="characters of a label")
    max_label_tokens: PositiveInt = Field(
        8_192, description="tokens of all labels of a request together, if a label may have several tokens"
    )
    max_tokenize_characters: PositiveInt = Field(100_000, description="characters of a text sent to `/v1/tokenize`")
    max_tokens_per_job: PositiveInt = Field(
        10_000_000_000, description="tokens, over all sequences, one job may have; each item counts with its query"
    )
    max_stored_tokens_per_job: PositiveInt = Field(
        2**24, description="tokens of one job's items, which are stored; with `item_first` each item holds its query"
    )
    max_stored_tokens_per_upload: PositiveInt = Field(2**30, description="the same, of a job sent as JSON lines")
    max_repeated_characters_per_job: PositiveInt = Field(
        2**25,
        description="characters of one job's query that are tokenized again with its items, over all items; most "
        "tokenizers need this only for the query's last word, or with `item_first` for the whole query",
    )
    max_repeated_characters_per_upload: PositiveInt = Field(2**30, description="the same, of a job sent as JSON lines")
    text_process_bytes: PositiveInt = Field(
        512 * MEBIBYTE, description="memory of the process that reads a long body (docs/limits.md)"
    )
    text_process_seconds: PositiveFloat = Field(120.0, description="time in which that process must have read the body")

    def divided_among(self, processes: int) -> Self:
        """Return the limits of each of so many processes that serve a port together, rounded up.

        Each of them has room for the largest body. Raises SettingError if not even the whole limits have.
        """
        for name in HELD_BYTES:
            if getattr(self, name) < self.max_body_bytes:
                expected = (
                    f"it must be at least {variable_of('max_body_bytes')}, which is {self.max_body_bytes}, because "
                    "such a body must have room; raise the one or lower the other"
                )
                raise setting_error(name, str(getattr(self, name)), expected)
        shares = {name: -(-getattr(self, name) // processes) for name in AT_THE_SAME_TIME}
        shares |= {name: max(shares[name], self.max_body_bytes) for name in HELD_BYTES}
        return self.model_copy(update=shares)
