"""`carillon send`: sign a request, send it, print the answer."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import IO, Any
from urllib.parse import urlsplit

import click
import httpx

from carillon.commands.output import say
from carillon.commands.sign import secret_options, secrets_in, text_in
from edge.core.replay_protection import NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER, body_hash, sign_request
from edge.core.signature import sign_text

_TIMEOUT_S = 30


@click.command()
@secret_options
@click.option("--url", required=True, help="Where to send it, such as http://127.0.0.1:8300/v2/push.")
@click.option("--method", type=click.Choice(["POST", "DELETE"]), default="POST", show_default=True)
@click.option("--replay-safe", is_flag=True, help="Add the headers by which a captured request cannot be sent again.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one line of JSON.")
@click.argument("file", type=click.File("rb"))
def send(
    secrets: Sequence[str],
    secret_files: Sequence[Path],
    url: str,
    method: str,
    replay_safe: bool,
    as_json: bool,
    file: IO[bytes],
) -> None:
    """Sign the request in FILE (- for standard input), send it and print the answer.

    The exit code is 0 when the answer's result is 0, else 1.
    """
    used = secrets_in(secrets, secret_files)
    body = signed_body(text_in(file), used)
    headers = replay_safe_headers(method, url, body, used) if replay_safe else {}
    answer = _send(url, method, body, headers)
    say(*json.dumps(answer, ensure_ascii=False, indent=None if as_json else 2).split("\n"))
    sys.exit(0 if answer.get("result") == 0 else 1)


def signed_body(text: str, secrets: Sequence[str]) -> bytes:
    """Return the request with its sign. It is built from the canonical text, so numbers stay as written."""
    rest = text[1:] if text == "{}" else f",{text[1:]}"
    return f'{{"sign":"{sign_text(text, secrets)}"{rest}'.encode()


def replay_safe_headers(method: str, url: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of a replay-safe signature, made now with a random nonce."""
    now_s, nonce = int(time.time()), token_urlsafe(24)
    signature = sign_request(method, urlsplit(url).path or "/", now_s, nonce, body_hash(body), secrets)
    return {TIME_HEADER: str(now_s), NONCE_HEADER: nonce, SIGNATURE_HEADER: signature}


def _send(url: str, method: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **headers}
    try:
        response = httpx.request(method, url, content=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"no answer from {url}: {error}") from None
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise click.ClickException(
            f"{url} answered HTTP {response.status_code}, which is no answer of a Carillon interface"
        )
    return answer
