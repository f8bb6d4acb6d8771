"""A small HTTP server that speaks the part of the hub's interface that ``huggingface_hub`` downloads models with."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


def commit_of(files: Mapping[str, bytes]) -> str:
    """A commit hash: 40 hex digits that depend on the files."""
    return hashlib.sha1(
        repr([(name, len(files[name]), files[name][:64]) for name in sorted(files)]).encode()
    ).hexdigest()


@dataclass
class Repository:
    """A model on the hub.

    revisions: files by branch or tag; token: what a request must bear to see it; gated: its files are refused though
    it is seen.
    """

    revisions: dict[str, dict[str, bytes]]
    token: str | None = None
    gated: bool = False

    def files(self, revision: str) -> dict[str, bytes] | None:
        """The files of a branch, tag or commit."""
        commits = {commit_of(files): files for files in self.revisions.values()}
        return self.revisions.get(revision, commits.get(revision))


@dataclass
class Hub:
    """The server. Requests are logged in ``requests`` as "METHOD path".

    bearers: the Authorization headers of those that were about a model;
    cut: how many downloads from now on end after half of their bytes; stalled: downloads wait until this is set;
    silent: no answer about a model before this is set; broken: every answer is a 503.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    bearers: set[str | None] = field(default_factory=set)
    cut: int = 0
    broken: bool = False
    silent: threading.Event | None = None
    stalled: threading.Event | None = None

    def __post_init__(self) -> None:
        hub = self

        class Handler(_Handler):
            def answer(self) -> None:
                hub.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Be gone: connections are refused from now on."""
        for waiting in (self.stalled, self.silent):
            if waiting is not None:
                waiting.set()
        self._server.shutdown()
        self._server.server_close()

    def downloads(self) -> list[str]:
        """The names of the files that were downloaded, sorted."""
        lines = [line for line in self.requests if line.startswith("GET") and "/resolve/" in line]
        return sorted({line.partition("/resolve/")[2].partition("/")[2] for line in lines})

    def repository_requests(self) -> list[str]:
        """The requests that are about a model. The library also asks for a list of its own, once a process."""
        return [line for line in self.requests if any(hub_id in line for hub_id in self.repositories)]

    def answer(self, request: _Handler) -> None:
        """Answer one request."""
        path = unquote(urlsplit(request.path).path)
        self.requests.append(f"{request.command} {path}")
        bearer = request.headers.get("authorization")
        if self.broken:
            return request.refuse(503)
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        hub_id, rest = "/".join(parts[2:4] if is_api else parts[:2]), parts[4:] if is_api else parts[2:]
        repository = self.repositories.get(hub_id)
        if repository is not None:
            self.bearers.add(bearer)
            if self.silent is not None:
                self.silent.wait(60)
        if bearer == "Bearer wrong":
            return request.refuse(401, message="Invalid credentials in Authorization header")
        if repository is None or (repository.token is not None and bearer != f"Bearer {repository.token}"):
            return request.refuse(401 if bearer is None else 404, "RepoNotFound")
        files = repository.files(rest[1] if rest else "main")
        if files is None:
            return request.refuse(404, "RevisionNotFound")
        match rest:
            case [] | ["revision", _]:
                return request.give(json.dumps({"id": hub_id, "sha": commit_of(files), "siblings": []}).encode())
            case ["tree", _]:
                tree = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                return request.give(json.dumps(tree).encode())
            case ["resolve", _, *name] if "/".join(name) in files:
                if repository.gated:
                    return request.refuse(403, "GatedRepo")
                if request.command == "GET" and self.stalled is not None:
                    self.stalled.wait(60)
                content = files["/".join(name)]
                shortened = request.command == "GET" and self.cut > 0
                self.cut -= shortened
                return request.give(content, commit_of(files), len(content) // 2 if shortened else None)
        return request.refuse(404, "EntryNotFound")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def give(self, content: bytes, commit: str | None = None, only: int | None = None) -> None:
        """Send content, from where the request wants it. only: hang up after so many bytes."""
        start = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        if commit is not None:
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[start:][:only])
        if only is not None:
            self.close_connection = True

    def refuse(self, status: int, code: str | None = None, message: str | None = None) -> None:
        """Send an error as the hub does."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if code is not None:
            self.send_header("X-Error-Code", code)
        if message is not None:
            self.send_header("X-Error-Message", message)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""
