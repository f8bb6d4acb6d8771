"""``scoreline verify``: whether a receipt is genuine, of what it is, and whether the answer can be repeated."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scoreline.client import DEFAULT_URL, Client
from scoreline.commands.options import USING, JsonOption, UrlOption
from scoreline.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from judgement.receipts import Statement

app = typer.Typer()


@app.command("verify", rich_help_panel=USING)
def verify_command(
    receipt: Annotated[
        str, typer.Argument(metavar="FILE", help="An answer that has a receipt, as JSON, or the receipt alone.")
    ],
    request: Annotated[
        str | None, typer.Option("--request", metavar="FILE", help="The request, as JSON: is the receipt of this one?")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Send the request again: are all bits of the answer the same?")
    ] = False,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="FILE", help="The public keys, as the service publishes them. Default: ask it."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Verify a receipt: its signature, the request and the answer that it is of, and the scores by computing them anew.

    The exit code is 0 if all that was asked holds, and 1 otherwise.
    """
    try:
        from judgement import receipts
    except ModuleNotFoundError as error:
        message = f"this needs the package {error.name}: pip install 'scoreline[receipts]'"
        raise CommandError(message, ExitCode.USAGE) from None
    if replay and request is None:
        raise CommandError("--replay needs the request: the receipt has its digest alone", ExitCode.USAGE)
    given, answer = _receipt_in(receipt)
    body = None if request is None else _json_of(request)
    held: list[str] = []
    with Client(url) as client:
        try:
            statement = receipts.verified(given, client.receipt_keys() if keys is None else _json_of(keys))
            when = datetime.fromtimestamp(statement.finished_at, UTC).isoformat()
            held.append(f"genuine: {statement.job} at {statement.path}, {when}, signed by key {statement.key_id}")
            if body is not None:
                statement.check_request(body)
                held.append("the request is the one that was answered")
            if answer is not None:
                statement.check_answer(answer)
                held.append("the answer is the one that was given")
            if body is not None and replay:
                held.append(_repeated(client, statement, body))
        except receipts.ReceiptError as error:
            raise CommandError(str(error)) from None
        finally:
            for line in () if as_json else held:
                print(line)
    if as_json:
        print(json.dumps({"statement": asdict(statement), "held": held}))


def _repeated(client: Client, statement: Statement, body: dict[str, Any]) -> str:
    """Compute an answer anew, and say that it is the same. Raises ReceiptError that says what differs."""
    from judgement.receipts import OF_THE_DELIVERY

    asked = {name: value for name, value in body.items() if name not in OF_THE_DELIVERY}
    again = client.repeat(statement.path, asked | {"return_provenance": True})
    statement.check_repetition(again)
    processors = {one["device"] for one in again["provenance"] if one is not None}
    return f"computed again by {', '.join(sorted(processors)) or 'a worker'}: all bits of the answer are the same"


def _receipt_in(name: str) -> tuple[str, dict[str, Any] | None]:
    """Return the receipt in a file, and the answer that it stands in, if there is one."""
    text = _text_of(name).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text, None
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and isinstance(value.get("result"), dict):  # of a job
        value = value["result"]
    if not isinstance(value, dict) or not isinstance(value.get("receipt"), str):
        raise CommandError(f"{name} has no receipt: was the request sent with return_receipt?", ExitCode.USAGE)
    return value["receipt"], value


def _json_of(name: str) -> dict[str, Any]:
    try:
        value = json.loads(_text_of(name))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{name} is not JSON: {error}", ExitCode.USAGE) from None
    if not isinstance(value, dict):
        raise CommandError(f"{name} must have a JSON object", ExitCode.USAGE)
    return value


def _text_of(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise CommandError(f"{name} can't be read: {why}", ExitCode.USAGE) from None
